"""`staddle tui`: a terminal UI that shows what an agent does in a sandbox, and steers it. Needs textual."""
