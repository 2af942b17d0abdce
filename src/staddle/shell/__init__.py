"""Driver of bash, in the host program: the lines it reads, its process, its state.

protocol          lines that run a command, and bash's answer (pure)
command           specification and outcome of a command; running_command: a running one
shell             one bash session that survives its process: its lock, and its open descriptors
shell_state       the present bash, the state that its successor must get, and whether it is known
bash_process      one bash: its pipes, its files, its socket
state, quoting    a dump of a shell's state, and words as bash writes them (pure)
hazards           guesses from its words what a command may do to its shell (pure)
usage_meter       resources that commands use, and the limit that a failed one reached
background_output output of jobs after their command is over
idle              maintenance of idle shells, and release of their descriptors
"""
