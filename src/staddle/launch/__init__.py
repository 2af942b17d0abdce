"""One confined command, on the host with its caller's rights: wrap, start, attend to, its output."""
