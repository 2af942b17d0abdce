"""Beside a command under Landlock, with its user's rights: connects in its place, ends what it leaves."""
