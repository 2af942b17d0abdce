"""The layered filesystem: what a sandbox changed, kept apart from the host until somebody wants it.

differences what layers say against what lies below them
changes     the same for people: `Change`, renames, the text of a change
scan        what one command changed, from two looks at a layer
store       where layers lie, and how they go when their process is gone
stack       layers in their order: freeze, continue, fork, copy, drop, squash
merging     whole layers copied, linked, laid flat
exchanging  what is in one directory put in place of what is in another
condensing  a copy that was worked in, as the layer that it would have been
review      what a commit would do: conflicts, protected names, new executables
staging     the new files of a commit, beside the target
journal     the renames of a commit, forwards and backwards, also after a crash
commit      taking changes over to the host, whole or not at all
archive     a layer as one file
kept        what is known about layers that outlive their process
keeping     the store of such layers, and who may use it
"""
