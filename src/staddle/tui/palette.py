"""The actions of the palette, and those that wait while another screen is on top. Data."""

from __future__ import annotations

#: Actions that do nothing while a question, the help or a review is on top.
NOT_ON_TOP = frozenset(
    (
        "help",
        "shell",
        "pane",
        "show_log",
        "commit",
        "leave",
        "tab",
        "shell_again",
        "new_shell",
        "new_sandbox",
        "close_tab",
        "snapshot",
    )
)
#: (title, help, action) of every action that the palette lists.
PALETTE = (
    ("Help", "the keys", "help"),
    ("Shell", "terminal, or the list of commands", "shell"),
    ("Changes", "what differs from the host", "pane('changes')"),
    ("Snapshots", "the tree of snapshots", "pane('snapshots')"),
    ("Network", "attempts, and connections that wait", "pane('network')"),
    ("Processes", "what runs, and what it uses", "pane('processes')"),
    ("Policy", "what is allowed, and why", "pane('policy')"),
    ("Log", "the last 1,000 lines", "show_log"),
    ("Commit…", "review the changes, and write them to the host", "commit"),
    ("Discard changes…", "drop all changes; undo brings them back", "discard"),
    ("Undo discard", "restore the snapshot from before the last discard", "undo_discard"),
    ("Take a snapshot…", "save this moment under a label", "snapshot"),
    ("Fork", "a second sandbox that continues from here, in a new tab", "fork_now"),
    ("New shell", "another shell of this sandbox, in a new tab", "new_shell"),
    ("New sandbox", "another sandbox of the same directory, in a new tab", "new_sandbox"),
    ("Close tab", "end this shell", "close_tab"),
    ("Interrupt", "end the commands that run", "interrupt"),
    ("Look again", "read changes and processes now", "look"),
    ("Copy selection", "copy what the mouse has selected", "copy"),
    ("Light or dark", "the other colours", "toggle_theme"),
    ("Split the other way", "side by side, or one above the other", "toggle_split"),
    ("Leave", "end everything; kept work stays", "leave"),
)
