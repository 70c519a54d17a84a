"""Are files this user's own? On a shared node only own files count, in folders that no other user can change.

The rule is that of sshd's StrictModes: every folder from / on belongs to this user or to root, and no one else may
write to it. A sticky folder, such as /tmp, is allowed: others can add files there, but not replace ours. This module is
sent with the supervisor and beside the keeper.
"""

from __future__ import annotations

import errno
import json
import os
import stat

from runbook.node.proc import account_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

MAX_DOCUMENT_BYTES = 8 << 20  # the most bytes of a document; that of a job with 10,000 nodes has less than one MiB
MAX_REASON_BYTES = 1000  # the most bytes of a reason
MAX_LINKS = 40  # the most links that a path may lead through
KEPT_FILE = "KEPT"
"""The file that keeps a folder from being removed with its run."""
WHY_STOPPED = "why-stopped"
"""The file in an attempt's folder with the reason that was given when the attempt was stopped."""
NO_FOLLOW_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK


class NotSafe(OSError):
    """Another user could change a file or folder. `strerror` says who and why, `filename` which one."""

    def __init__(self, why: str, path: str) -> None:
        OSError.__init__(self, errno.EPERM, why, path)


def expanded_path(path: str) -> str:
    """The path as an absolute one: `~` is expanded, and a relative path begins in the home folder."""
    return os.path.join(os.path.expanduser("~"), os.path.expanduser(path))


def require_safe_path(path: str) -> None:
    """Raises NotSafe if users other than this one and root can change an absolute path, as far as it exists."""
    done, todo, links = "/", reversed_path_names(path), 0
    sticky = check_guarded_folder(done, os.lstat(done))
    while todo:
        part = todo.pop()
        here = os.path.dirname(done) if part == ".." else os.path.join(done, part)
        try:
            status = os.lstat(here)
        except FileNotFoundError:
            return
        if not stat.S_ISLNK(status.st_mode):
            done, sticky = here, check_guarded_folder(here, status)
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), here)
        if sticky and not is_trusted_uid(status.st_uid):
            raise NotSafe("it is a link of %s" % user_text(status.st_uid), here)
        target = os.readlink(here)
        if target.startswith("/"):
            done = "/"
        todo += reversed_path_names(target)


def reversed_path_names(path: str) -> list[str]:
    """The names in a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def check_guarded_folder(path: str, status: os.stat_result) -> bool:
    """Whether a folder is sticky. Raises NotSafe if it is another user's, or others may write to it."""
    if not is_trusted_uid(status.st_uid):
        raise NotSafe("it belongs to %s, and we are %s" % (user_text(status.st_uid), user_text(os.geteuid())), path)
    sticky = bool(status.st_mode & stat.S_ISVTX)
    if not stat.S_ISDIR(status.st_mode) or sticky:
        return sticky
    others = other_writers(status)
    if others:
        mode = stat.S_IMODE(status.st_mode)
        raise NotSafe("%s may write to it (mode %04o), and it is not sticky" % (others, mode), path)
    return False


def is_trusted_uid(uid: int) -> bool:
    """Whether a uid is this user's, root's, or that of the owner of /, which stands for root in some containers."""
    return uid in (os.geteuid(), 0, os.lstat("/").st_uid)


def other_writers(status: os.stat_result) -> str | None:
    """In words, who besides this user and root may write to a file or folder; None: nobody."""
    if status.st_mode & stat.S_IWOTH:
        return "every user"
    if status.st_mode & stat.S_IWGRP and not is_own_group(status.st_gid):
        return "the group %s" % group_name(status.st_gid)
    return None


def is_own_group(gid: int) -> bool:
    """Whether only this user and root are in a group: it is root's, or this user's own group, with the user's name and
    no other members."""
    if gid == 0:
        return True
    import grp
    import pwd

    try:
        me, it = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == me.pw_gid and it.gr_name == me.pw_name and set(it.gr_mem) <= {me.pw_name}


def require_own_folder(path: str) -> os.stat_result:
    """The status of a folder, if it is this user's and no other user may write to it. Raises NotSafe if it is not, and
    OSError."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise NotSafe("it is not a folder" if not stat.S_ISLNK(status.st_mode) else "it is a link", path)
    if status.st_uid != os.geteuid():
        raise NotSafe("it belongs to %s, and we are %s" % (user_text(status.st_uid), user_text(os.geteuid())), path)
    if other_writers(status):
        raise NotSafe("others may write to it (mode %04o)" % stat.S_IMODE(status.st_mode), path)
    return status


def is_own_folder(path: str) -> bool:
    try:
        require_own_folder(path)
    except OSError:
        return False
    return True


def make_folders(path: str) -> None:
    """Makes a folder with mode 0700, and the folders above it, unless they exist. Raises OSError."""
    above = os.path.dirname(path)
    if above != path and not os.path.isdir(above):
        make_folders(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass


def names_in_folder(folder: str) -> list[str]:
    """The names in a folder, sorted; empty if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def open_own_file(path: str, strict: bool = True) -> BinaryIO:
    """A regular file of this user, open for reading bytes. `strict`: no other user may write to it. Raises NotSafe if
    the file is another kind or user's, and OSError."""
    file = os.fdopen(os.open(path, os.O_RDONLY | NO_FOLLOW_FLAGS), "rb")
    status = os.fstat(file.fileno())
    why = None
    if not stat.S_ISREG(status.st_mode):
        why = "it is not a regular file"
    elif status.st_uid != os.geteuid():
        why = "it belongs to %s" % user_text(status.st_uid)
    elif strict and other_writers(status):
        why = "others may write to it (mode %04o)" % stat.S_IMODE(status.st_mode)
    if why:
        file.close()
        raise NotSafe(why, path)
    return file


def read_json_object(path: str) -> dict[str, Any]:
    """The JSON object in a file of this user. Raises OSError, and ValueError with a sentence if the file holds anything
    else."""
    with open_own_file(path) as file:
        data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ValueError("it is larger than %d bytes" % MAX_DOCUMENT_BYTES)
    try:
        found = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8")
    except ValueError as error:
        raise ValueError("it is not JSON: %s" % error)
    except RecursionError:
        raise ValueError("its JSON is nested too deep")
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def write_atomically(path: str, text: str) -> None:
    """Writes a file with mode 0600 under another name and renames it, so that it is always complete."""
    partial = path + ".partial"
    try:
        os.unlink(partial)
    except OSError:
        pass
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW_FLAGS, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(partial, path)


def user_text(uid: int) -> str:
    return account_name(uid) or "user %d" % uid


def group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def read_stop_reason(folder: str) -> str:
    """The reason that was left beside an attempt's journals when it was stopped; empty if signals came without one, as
    at a reboot."""
    try:
        with open_own_file(os.path.join(folder, WHY_STOPPED)) as file:
            return file.read(MAX_REASON_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
