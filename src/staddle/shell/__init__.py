"""The driver of bash, in the host program: the lines it reads, its process, its state.

protocol          the lines that run a command, and bash's answer (pure)
command           a command: its specification and its outcome; running_command: one that runs
shell             one bash session that cannot be lost: its lock, and what it holds open
shell_state       the present bash and the state that its successor is to have
bash_process      one bash: its pipes, its files, its socket
known_state       what bash has told of its state, and whether that is so still
state, quoting    a dump of the state of a shell, and words as bash writes them (pure)
hazards           guesses what a text may do to its shell (pure)
usage_meter       what commands use, and the limit that a failed one ran into
background_output what jobs print after their command is over
idle              maintenance of idle shells, and the descriptors they give back
"""
