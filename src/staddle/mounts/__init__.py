"""The sandbox's view of the file system: the operations that it consists of, and the builder.

    from_plan    plan -> operations, in order (pure), and a cache of them
    host         facts about the host for the layout, opening of paths, and owners
    operations   the operations themselves: plain values that can be printed, and sent as rows
    shared_view  split a view into a part that sandboxes share, and each one's own (pure)
    builder      operations -> our own mounts, in a namespace that is ours alone

A launcher that mounts by itself (bwrap) takes the operations as they are.
"""
