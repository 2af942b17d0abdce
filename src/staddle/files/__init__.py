"""Files beneath a descriptor: open, walk, copy, pack, unpack and remove them; globs select them."""
