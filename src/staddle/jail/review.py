"""Changes that a diff shows but that are easy to read past: modes, links, other repositories."""

from __future__ import annotations

import os

from .planted_files import PlantedFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .git import Git

#: Between two commits, or a commit and an index, a link to another repository is only a number:
#: git does not look into it. Where a tree is looked at it would, so there they stay left out.
WITH_REPOSITORIES = "--ignore-submodules=dirty"

_EXECUTABLE, _LINK, _REPOSITORY = b"100755", b"120000", b"160000"
#: More links than this are named, but it is not looked where they lead.
_MOST_LINKS = 200
_LONGEST_PATH = 4096


def worth_a_look(git: Git, base: str, tip: str) -> tuple[PlantedFile, ...]:
    """New executables, links out of the tree, and other repositories, from `base` to `tip`."""
    said = git.run("diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", WITH_REPOSITORIES, base, tip)
    fields = said.split(b"\0")
    found = []
    links = 0
    for meta, name in zip(fields[0::2], fields[1::2], strict=False):
        before, mode, _, blob, _ = meta.removeprefix(b":").split(b" ")
        path = os.fsdecode(name)
        if mode == _EXECUTABLE and before != mode:
            found.append(PlantedFile(path, "can be run now"))
        elif mode == _REPOSITORY:
            found.append(PlantedFile(path, "is another repository, which git may fetch and enter"))
        elif mode == _LINK:
            links += 1
            target = _target(git, blob.decode()) if links <= _MOST_LINKS else None
            if target is None or _leads_out(path, target):
                found.append(PlantedFile(path, f"is a link out of the tree, to {target or 'somewhere'!r}"))
    return tuple(found)


def _target(git: Git, blob: str) -> str | None:
    if int(git.run("cat-file", "-s", blob)) > _LONGEST_PATH:
        return None
    return os.fsdecode(git.run("cat-file", "blob", blob))


def _leads_out(path: str, target: str) -> bool:
    """By its letters alone: another link on the way is a finding of its own."""
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return target.startswith("/") or place == ".." or place.startswith("../")
