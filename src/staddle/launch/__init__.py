"""One confined command, on the host with its caller's rights: wrap, start, supervise, relay output."""
