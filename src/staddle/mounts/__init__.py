"""The sandbox's view of the file system: the operations that it consists of, and the builder.

    from_plan    plan -> operations, in order (pure), and a cache of them
    host         what that must know about the host, opening what it names, and its owners
    operations   the operations themselves: plain values that can be printed
    rows         the operations as plain rows, for a process that is told about them
    builder      operations -> mounts of our own, in a namespace that is ours alone

A launcher that mounts by itself (bwrap) takes the operations as they are.
"""
