"""A terminal emulator: output becomes cells, and no byte of it reaches the user's terminal."""
