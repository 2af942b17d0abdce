"""Delete directories in the background.

A layer of ten thousand files takes a tenth of a second to delete, and the kernel leaves a directory in it
that its owner cannot open. So a directory is first renamed into a trash, which is instant, and a background
job empties it. The interpreter waits for that when it exits. If it is killed, the next start finds the trash
and deletes the rest. Freeing room must need no room: on a full file system, where no trash can be created, a
directory is deleted in its place.
"""

from __future__ import annotations

import errno
import os

from ..background import do_later, rest, wait_for_jobs
from ..files.remove_tree import remove
from ..places import make_directory

TRASH = "gone"
#: No blocks, no inodes, or none for this user.
FULL = (errno.ENOSPC, errno.EDQUOT)


def move(path: str, home: str, owner: tuple[int, int] | None = None) -> None:
    """Remove the directory `path` at once, and delete it soon. `home` is on the same file system.

    `owner` may have to delete it in our place.
    """
    trash = f"{home}/{TRASH}"
    for _ in range(100):
        try:
            make_directory(trash)
            if owner is not None:
                os.chown(trash, *owner)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not os.path.lexists(path):
                return  # it was deleted with its home
            continue  # another thread has removed the trash before it had its owner
        except PermissionError:
            return  # the program has changed its user since; the next program of the other one deletes it
        except OSError as error:
            if error.errno not in FULL:
                raise
            delete_later(path)
            return
        place = f"{trash}/{os.urandom(8).hex()}"
        try:
            os.rename(path, place)
        except FileNotFoundError:
            if not os.path.lexists(path):
                return  # another process has moved it
            continue  # the trash was just removed
        except PermissionError:
            return  # as above
        except OSError as error:
            if error.errno != errno.EXDEV and error.errno not in FULL:
                raise
            place = path  # a directory of an image, which overlayfs cannot move; or there is no room
        delete_later(place)
        return


def delete_later(path: str) -> None:
    """Delete the unused directory `path` in the background."""

    def job() -> None:
        remove((os.fsencode(path),), rest)
        above = os.path.dirname(path)
        if os.path.basename(above) == TRASH:
            _tidy(above)

    do_later(job)


def wait() -> None:
    """Wait until everything that this process has moved to the trash is deleted."""
    wait_for_jobs()


def _tidy(trash: str) -> None:
    """Remove an empty trash, and an empty home with it."""
    try:
        os.rmdir(trash)
        os.rmdir(os.path.dirname(trash))
    except OSError:
        pass  # not empty
