"""The host program's side, with its rights: start a gateway, read its reports, forward into a sandbox."""
