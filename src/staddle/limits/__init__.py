"""Limits over a whole sandbox: who holds each of them, how it is set, measured, and told about.

    where        which groups of this host can be used, decided from facts (pure)
    host         the facts
    scope        asking systemd for groups of our own, where that is the way to get them
    controls     which file of a group holds which limit, for both versions (pure)
    group        the groups of one sandbox: limits, members, freezing, killing
    family       all groups of one host program, made beneath one of its own, and removed after
    ahead        groups for sandboxes that are made before anybody asks
    here         the family of this program, made when the first sandbox needs it
    alone        all of these, for one command alone
    rlimits      what a process can be held to by itself, where there are no groups
    standing_in  what holds in their place, for a policy
    in_memory    how large file systems in memory may be
    victims      who goes first when memory is used up
    watch        who has to go when memory is short and nothing else holds it (pure)
    measuring    how much memory the processes of a sandbox take
    supervisor   both together, a step at a time, for a loop that has other things to do
    processors   on which of the machine's processors a sandbox is
    telling      what it did, told to the host program
    disk         bytes and inodes of what a sandbox writes
    usage        what one command used
    reasons      what a command ran into, in words
    holding      which of these holds each limit of a policy, and what nothing holds

The machine's own groups are never changed: everything is done in groups below a new one.
"""
