"""History of a sandbox: a point after each command that changed files, and steps between points.

recorder     takes points, keeps them within bounds, steps back and forth
point        one point, its differences from another, its files
bisect       finds the command after which a test fails
blame        finds the command that last wrote each line of a file
"""
