"""Limits over a whole sandbox: what enforces each of them, how it is set, measured and reported.

    cgroup_layout       which cgroups of this host can be used, decided from facts (pure)
    scope               ask systemd for delegated cgroups, where that is the way to get them
    cgroup_files        which file of a cgroup has which limit or counter, for both versions (pure)
    sandbox_cgroups     the cgroups of one sandbox: limits, members, freezing, killing
    cgroup_tree         all cgroups of one host program, made beneath one of its own, and removed after it
    default_limits      the limits that protect the host where a policy says none: a part of what there is
    memory_watch        the default on memory of sessions without cgroups, by one thread for all
    memory_samples      an estimate of a command's memory, where nothing counts it
    prewarm             cgroups for sandboxes that are made in advance
    host_cgroups        the facts, and the cgroup tree of this program, made when the first sandbox needs it
    command_limits      all of these, for a single command
    unnamed_files       open files that no name leads to, also in flight: memory files, pipes, deleted files
    supervisor          measure and enforce memory, count processes, where no cgroup does, a step at a time
    process_attributes  CPU affinity and OOM score
    limit_tally         report to the host program what the supervisor did
    disk                bytes and inodes of what a sandbox writes
    usage               what one command used, and the limit that made it fail, in words
    enforced            what enforces each limit of a policy, with cgroups and without, and the gaps

The machine's own cgroups are never changed: everything is done in cgroups below a new one.
"""
