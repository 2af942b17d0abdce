"""The host program's side, with its rights: start a gateway, read what it tells, forward into a sandbox."""
