"""Find out, by evidence, which container this is, and with which options it would enforce everything."""
