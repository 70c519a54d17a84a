"""Whether a login gives the job what it needs: a writable folder, a Python that is new enough, limits that are wide
enough."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runbook.causes.catalogue import finding_for
from runbook.checks.context import NOT_SAFE_ERROR, Facts, run_folder_finding
from runbook.model.command_quoting import shell_word
from runbook.model.inventory import Inventory, Node
from runbook.model.verdict import Finding
from runbook.parsers.host_resources import MIN_MEMLOCK_KIB, MIN_OPEN_FILES
from runbook.transport import bootstrap

MIN_FREE_BYTES = 64 << 20
"""The fewest bytes that must be free where the workdir is."""
MIN_FREE_INODES = 64
"""The fewest inodes that must be free where the workdir is."""


def run_folder_findings(node: Node, hello: Mapping[str, Any]) -> list[Finding]:
    """Findings about the run's folder on the node. `hello` is what the supervisor said of itself when it came up."""
    place: Mapping[str, Any] = hello.get("place") or {}
    if "folder_error" in hello:
        return [_unmakeable_folder_finding(node, hello["folder_error"], place)]
    folder, free, files = hello["folder"], hello.get("free_bytes"), hello.get("free_files")
    if free is not None and free < MIN_FREE_BYTES:
        return [_full_disk_finding(node, place, f"{free} bytes free at {folder}", f"{free >> 20} MiB left")]
    if files is not None and files < MIN_FREE_INODES:
        return [_full_disk_finding(node, place, f"{files} inodes are left at {folder}", None)]
    if hello.get("noexec"):
        mount = place.get("mount")
        says = f"{folder} on {node.name} lies on a file system mounted noexec: programs put there cannot be started"
        seen = (f"the mount {mount} has the flag noexec",)
        return [finding_for("workdir-not-writable", says, seen, way="noexec", node=node.name, mount=shell_word(mount))]
    return []


def _unmakeable_folder_finding(node: Node, error: Mapping[str, str], place: Mapping[str, Any]) -> Finding:
    """The finding for a folder of the run that cannot be made. `place`: what stands at the workdir's place."""
    if not place or error.get("type") == NOT_SAFE_ERROR:
        return run_folder_finding(node.name, error)
    workdir, user = place["workdir"], place["user"]
    code = error.get("errno") or error.get("type")
    seen = (
        f"{error.get('path')}: {error.get('text')} ({code})",
        f"{place['there']} belongs to {place['owner']}, mode {place['mode']}; we are {user}",
    )
    if code == "EDQUOT":
        says = f"{user} has used up the quota on {place.get('mount')} of {node.name}, where the workdir {workdir} lies"
        return finding_for("disk-full", says, seen, way="quota", node=node.name)
    if code == "ENOSPC":
        return _full_disk_finding(node, place, seen[0], None if place.get("full_of_files") else "no room left")
    if code == "EROFS":
        mount = place.get("mount")
        says = f"the workdir {workdir} of {node.name} lies on a read-only file system ({mount})"
        return finding_for("workdir-not-writable", says, seen, way="read-only", node=node.name, mount=shell_word(mount))
    return _unwritable_workdir_finding(node, place, seen)


def _unwritable_workdir_finding(node: Node, place: Mapping[str, Any], seen: tuple[str, ...]) -> Finding:
    """Why the workdir cannot be made although the file system has room: what stands in its place, or who owns the
    folder."""
    workdir, user, there = place["workdir"], place["user"], place["there"]
    home, link, way = place.get("home"), workdir, "missing"
    if place.get("link"):
        link = place["link"]
        says = f"the workdir {workdir} of {node.name} is a link to {link}, which is not there"
    elif not place["folder"]:
        way = "file"
        says = f"{there} on {node.name} is a file, and the workdir {workdir} would have to be a folder there"
    elif home and f"{workdir}/".startswith(f"{home}/") and not f"{there}/".startswith(f"{home}/"):
        link = home
        says = (
            f"{user} has no home folder on {node.name}: {home} is not there, and the workdir {workdir} would lie in it"
        )
    elif place["owner"] == user and re.fullmatch(r"[0-7]*[0-6][0-7][0-7]", str(place["mode"])):
        way = "own"
        says = f"{there} on {node.name} is {user}'s own, and its mode {place['mode']} keeps {user} itself out"
    elif there != workdir:
        says = f"{user} may not write to {there} on {node.name}, where the workdir {workdir} is to be made"
    else:
        way = "below"
        says = f"{user} may not write to {there} on {node.name}, where the workdir is"
    return finding_for(
        "workdir-not-writable",
        says,
        seen,
        way=way,
        node=node.name,
        user=shell_word(user),
        link=shell_word(link),
        there=shell_word(there),
        own=f"{workdir}/{user}",
    )


def _full_disk_finding(node: Node, place: Mapping[str, Any], seen: str, room: str | None) -> Finding:
    """The finding for a full file system. `room` says in words how little space is left; None means that inodes have
    run out."""
    mount = place.get("mount", "/")
    says = f"{node.name} has room for bytes but not for files where its workdir lies: {mount} has run out of inodes"
    if room is not None:
        says = (
            f"{node.name} has {room} where its workdir lies ({place.get('workdir')} on {mount}); "
            f"the job needs at least {MIN_FREE_BYTES >> 20} MiB"
        )
    way = "inodes" if room is None else "space"
    return finding_for("disk-full", says, (seen,), way=way, node=node.name, mount=shell_word(mount))


def unusable_python_finding(node: Node, hello: Mapping[str, Any], complaint: Sequence[str] = ()) -> Finding | None:
    """A finding when the supervisor could not use the interpreter that the inventory names, and why; else None.

    With an `activate` line the interpreter's name may only mean something after that line, so the ranks find out.
    `complaint`: the lines that were written to stderr before an interpreter started.
    """
    rejected = list(hello.get("rejected") or ())
    if node.activate or not rejected:
        return None
    name, code = node.interpreter, int(rejected[0])
    if code == bootstrap.EXIT_TOO_OLD:
        cause, way, why = "python-too-old", "live", f"on {node.place} is older than Python 3.8"
    elif code == bootstrap.EXIT_NOT_FOUND:
        cause, way, why = "python-missing", "other", f"is not there on {node.place}"
    else:
        cause, way, why = "python-missing", "broken", f"does not start on {node.place}"
        why += "" if code == bootstrap.EXIT_NOT_STARTABLE else f" (exit code {code})"
        why += f": {complaint[-1]}" if complaint else ""
    seen = (f"`{name} --version` on {node.place}; {hello['executable']} is {hello['python']}", *complaint)
    executable, python = hello["executable"], shell_word(name)
    return finding_for(cause, f"{name} {why}", seen, way=way, node=node.name, executable=executable, python=python)


MIN_MEMLOCK_BYTES, MIN_SAFE_MEMLOCK_BYTES = MIN_MEMLOCK_KIB << 10, 1 << 30
"""Bytes of memory that a login may lock. Below the first, two nodes cannot start; below the second, many nodes may
not."""

MIN_SAFE_OPEN_FILES = 1024
"""The default of every system; each peer takes a handful of open files."""

SHM_SEGMENT_BYTES, MIN_SAFE_SHM_BYTES = 10 << 20, 1 << 30
"""Bytes of /dev/shm. NCCL makes its smallest segment (/dev/shm/nccl-*, 9637888 bytes) for each GPU of a node that talks
to another GPU: if there is no room for one segment a GPU, nothing starts. Docker's default, 64 MiB, is enough for two
GPUs and not for eight."""


def limit_findings(inventory: Inventory, node: Node, facts: Mapping[str, Any], warnings: list[str]) -> list[Finding]:
    """Findings for limits under which the job cannot work. For limits under which it may not work, adds to
    `warnings`."""
    limits = facts["limits"]
    found = [
        _memlock_finding(inventory, node, limits, warnings),
        _open_files_finding(node, limits, warnings),
        _shared_memory_finding(node, facts.get("shm"), warnings),
    ]
    warnings += _fatal_limit_warnings(limits)
    return [finding for finding in found if finding is not None]


def _memlock_finding(inventory: Inventory, node: Node, limits: Facts, warnings: list[str]) -> Finding | None:
    """A finding, or a warning, when logins may lock too little memory for RDMA."""
    soft, hard = limits.get("memlock_bytes"), limits.get("memlock_hard_bytes")
    # Root is not limited, and a user who may raise the limit may do so in `activate`.
    if inventory.infiniband is None or soft is None or limits.get("may_lock") or soft >= MIN_SAFE_MEMLOCK_BYTES:
        return None
    can_raise = node.activate is not None and (hard is None or hard >= MIN_MEMLOCK_BYTES)
    if inventory.rendezvous.backend != "nccl" or soft >= MIN_MEMLOCK_BYTES or can_raise:
        warnings.append(
            f"logins may lock {soft >> 10} KiB of memory (ulimit -l): RDMA registers more; set it to unlimited"
        )
        return None
    says = f"logins on {node.name} may lock {soft >> 10} KiB of memory: RDMA cannot register its buffers in that"
    seen = (f"RLIMIT_MEMLOCK is {soft} bytes, at most {'unlimited' if hard is None else f'{hard} bytes'}",)
    return finding_for("memlock-limit", says, seen, node=node.name)


def _open_files_finding(node: Node, limits: Facts, warnings: list[str]) -> Finding | None:
    """A finding, or a warning, when logins may open too few files."""
    files = limits.get("open_files")
    if files is None or files >= MIN_SAFE_OPEN_FILES or files < 0:
        return None
    if files >= MIN_OPEN_FILES:
        warnings.append(f"logins may have {files} files open (ulimit -n): a large job needs more; 65536 is usual")
        return None
    says = f"logins on {node.name} may have {files} files open, fewer than torch and its connections need"
    seen = (f"RLIMIT_NOFILE is {files}",)
    return finding_for("open-files-limit", says, seen, way="node", node=node.name)


def _fatal_limit_warnings(limits: Facts) -> Iterator[str]:
    """Warnings about limits that will end a rank some day, whatever the rank does."""
    space, seconds = limits.get("address_space_bytes"), limits.get("cpu_seconds")
    if space is not None:
        yield (
            f"logins may use {space >> 20} MiB of address space (ulimit -v): torch and CUDA reserve far more than they "
            "use; set it to unlimited"
        )
    if seconds is not None:
        yield f"logins may use {seconds} s of CPU time a process (ulimit -t): the kernel kills a rank that used them up"


def _shared_memory_finding(node: Node, shm: Facts | None, warnings: list[str]) -> Finding | None:
    """A finding, or a warning, when /dev/shm is too small for NCCL between the GPUs of the node."""
    if len(node.gpus) < 2:
        return None
    if not shm:
        warnings.append("/dev/shm is not there, or cannot be looked at: NCCL between GPUs of one node needs it")
        return None
    enough = shm["free_bytes"] >= SHM_SEGMENT_BYTES * len(node.gpus)
    if enough and shm["bytes"] >= MIN_SAFE_SHM_BYTES:
        return None
    size, free, need = shm["bytes"] >> 20, shm["free_bytes"] >> 20, SHM_SEGMENT_BYTES * len(node.gpus) >> 20
    if enough:
        warnings.append(f"/dev/shm has {size} MiB: NCCL between GPUs of one node needs 1 GiB or more")
        return None
    says = (
        f"/dev/shm on {node.name} has {free} of {size} MiB free: NCCL needs at least {need} MiB for "
        f"{len(node.gpus)} GPUs (in Docker: `--shm-size=8g` or `--ipc=host`)"
    )
    seen = (f"{shm['free_bytes']} of {shm['bytes']} bytes are free",)
    return finding_for("shm-too-small", says, seen, way="larger" if size < need else "filled", node=node.name)
