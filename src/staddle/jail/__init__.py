"""Run one agent command on a git worktree, unattended, and take its work over safely."""
