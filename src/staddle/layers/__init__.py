"""Overlay layers: the changes of a sandbox, separate from the host until they are committed.

store             the directory of layers of this process, deleted when the process is gone
stack             layers in order: `Stack`, which is written, and `LayerSnapshot`, which is frozen
frozen_base       a copy of the host's directory, to use below layers instead of it
merged_view       layers as overlayfs merges them
differences       the differences between layers and the bases below them
changes           these differences for people: `Change`, renames; unified_diff has their text
change_watch      the changes of one command, from two scans of a layer
layer_writer      write entries into a layer
merge             copy, link or flatten whole layers
discard           a layer without some of its changes
copied_tree       a copy with changes: condensed to a layer, or exchanged
baseline          the state of the host's files when the sandbox began
review            the objections to a commit: conflicts, protected names, new executables
journal           the renames of a commit, forwards and backwards, even after a crash
commit_dir        the directory of a commit in progress; finish or undo it after a kill
commit            write the new files next to the target, then commit them whole or not at all
archive           layers as one file: saved and loaded
session_record    the record of a kept sandbox
persistent_store  the store of its layers, claimed by one process at a time
trash             delete directories in the background
"""
