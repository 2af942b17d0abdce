"""A terminal emulator: what a program prints becomes cells, and no byte of it reaches the user's terminal."""
