"""Learn a policy from a run: record which files, sockets and hosts it uses, and propose the grants for them.

`recording` watches, `folding` decides (pure), `proposal` writes the policy file, `world` chooses what a
watched command sees. What is learned is advice: a watched command may change a path between our look and the
kernel's, so recording never enforces anything. The sandbox does.
"""

from __future__ import annotations
