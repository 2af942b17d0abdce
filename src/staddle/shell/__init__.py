"""The driver of bash, on the host: what is said to a shell, its process, its state, what may break it.

protocol          what is said to a shell, and what it answers (pure)
bash_process      one bash, from outside; shell_state: what is known of it
shell             one bash session that cannot be lost
running_command   one command in it
state, quoting    what a shell remembers, and words as bash writes them (pure)
hazards           what a text may do to its shell (pure)
"""
