"""Limits over a whole sandbox: choose the mechanism for each limit, set it, measure and report.

    cgroup_layout       pick the cgroups of this host that can be used, from facts (pure)
    scope               get delegated cgroups from systemd, where no others are available
    cgroup_files        the cgroup file of each limit and counter, for both versions (pure)
    sandbox_cgroups     the cgroups of one sandbox: limits, members, freezing, killing
    cgroup_tree         all cgroups of one host program, below a cgroup of its own, removed after it
    default_limits      limits that protect the host if a policy sets none: a share of what is available
    memory_watch        the default memory limit of sessions without cgroups, by one thread for all
    prewarm             cgroups for sandboxes that are prepared in advance
    host_cgroups        facts about this host, and the cgroup tree of this program, made on first use
    command_limits      all of these, for a single command
    unnamed_files       open files without a name, even in flight: memory files, pipes, deleted files
    supervisor          measure and enforce memory, count processes, where no cgroup does, a step at a time
    process_attributes  CPU affinity and OOM score
    limit_tally         report the supervisor's kills and counts to the host program
    disk                bytes and inodes that a sandbox writes
    usage               resources that one command used, and the limit that made it fail, in words
    enforced            the mechanism for each limit of a policy, with and without cgroups, and the gaps

staddle never changes the machine's own cgroups, except for controllers that it enables in a cgroup that was
delegated to it. It creates its own cgroups and works below them.
"""
