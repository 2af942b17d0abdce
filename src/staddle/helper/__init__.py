"""The program that confines itself and then becomes the command (`jail-exec`)."""
