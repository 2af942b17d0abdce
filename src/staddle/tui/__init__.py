"""`staddle tui`: a terminal UI that shows and controls an agent's work in a sandbox. Needs textual."""
