"""The processes around a command under Landlock, with its user's rights: they connect for it and clean up."""
