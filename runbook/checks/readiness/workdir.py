"""Can the run's folder on a node hold what is put there, and can programs start from it?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.checks.context import NOT_SAFE, folder_finding
from runbook.model.commands import word
from runbook.model.inventory import Node
from runbook.model.verdict import Finding

ROOM_BYTES = 64 << 20
ROOM_FILES = 64
NO_ROOM = ("ENOSPC", "EDQUOT")


def folder_findings(node: Node, hello: Mapping[str, Any]) -> list[Finding]:
    """What is wrong with the run's folder. `hello` is what the supervisor said of itself when it came up."""
    place: Mapping[str, Any] = hello.get("place") or {}
    if "folder_error" in hello:
        return [_cannot_be_made(node, hello["folder_error"], place)]
    folder, free, files = hello["folder"], hello.get("free_bytes"), hello.get("free_files")
    if free is not None and free < ROOM_BYTES:
        return [
            _full(
                node,
                place,
                f"{node.name} has {free >> 20} MiB left where its workdir lies",
                f"{free} bytes free at {folder}",
            )
        ]
    if files is not None and files < ROOM_FILES:
        return [_no_inodes(node, place, f"{files} inodes are left at {folder}")]
    if hello.get("noexec"):
        mount = place.get("mount")
        return [
            Finding(
                "workdir-not-writable",
                f"{folder} on {node.name} lies on a file system mounted noexec: programs put there cannot be started",
                f"on {node.name}: `sudo mount -o remount,exec {word(mount)}` (and its line in /etc/fstab), or {another(node)}",
                (f"the mount {mount} has the flag noexec",),
            )
        ]
    return []


def _cannot_be_made(node: Node, error: Mapping[str, str], place: Mapping[str, Any]) -> Finding:
    if not place or error.get("type") == NOT_SAFE:
        return folder_finding(node.name, error)
    workdir, user, there = place["workdir"], place["user"], place["there"]
    code = error.get("errno") or error.get("type")
    seen = (
        f"{error.get('path')}: {error.get('text')} ({code})",
        f"{there} belongs to {place['owner']}, mode {place['mode']}; we are {user}",
    )
    if code == "EDQUOT":
        return Finding(
            "disk-full",
            f"{user} has used up the quota on {place.get('mount')} of {node.name}, where the workdir {workdir} lies",
            f"on {node.name}: `quota -s` shows it; remove something, or {another(node)}",
            seen,
        )
    if code == "ENOSPC":
        if place.get("full_of_files"):
            return _no_inodes(node, place, seen[0])
        return _full(node, place, f"{node.name} has no room left where its workdir lies", seen[0])
    if code == "EROFS":
        mount = place.get("mount")
        return Finding(
            "workdir-not-writable",
            f"the workdir {workdir} of {node.name} lies on a read-only file system ({mount})",
            f"on {node.name}: `sudo dmesg | grep -i -E 'remount|i/o error'` tells whether the kernel did that after an "
            f"error of the disk; if not, `sudo mount -o remount,rw {word(mount)}`; or {another(node)}",
            seen,
        )
    if place.get("link"):
        return Finding(
            "workdir-not-writable",
            f"the workdir {workdir} of {node.name} is a link to {place['link']}, which is not there",
            f"on {node.name}: `sudo install -d -o {word(user)} -m 700 {word(place['link'])}`",
            seen,
        )
    if not place["folder"]:
        return Finding(
            "workdir-not-writable",
            f"{there} on {node.name} is a file, and the workdir {workdir} would have to be a folder there",
            f"on {node.name}: `mv {word(there)} {word(there)}.old`, or {another(node)}",
            seen,
        )
    home = place.get("home")
    if home and f"{workdir}/".startswith(f"{home}/") and not f"{there}/".startswith(f"{home}/"):
        return Finding(
            "workdir-not-writable",
            f"{user} has no home folder on {node.name}: {home} is not there, and the workdir {workdir} would lie in it",
            f"on {node.name}: `sudo install -d -o {word(user)} -m 700 {word(home)}`",
            seen,
        )
    return Finding(
        "workdir-not-writable",
        f"{user} may not write to {there} on {node.name}, where the workdir "
        + (f"{workdir} is to be made" if there != workdir else "is"),
        f"on {node.name}: `sudo install -d -o {word(user)} -m 700 {word(workdir)}`"
        if there != workdir
        else f"on {node.name}: `sudo install -d -o {word(user)} -m 700 {word(workdir)}/{word(user)}`, and `workdir: {workdir}/{user}` in the inventory",
        seen,
    )


def _full(node: Node, place: Mapping[str, Any], says: str, seen: str) -> Finding:
    mount = place.get("mount", "/")
    return Finding(
        "disk-full",
        f"{says} ({place.get('workdir')} on {mount}); the job needs at least {ROOM_BYTES >> 20} MiB",
        f"on {node.name}: `sudo du -xh -d 2 {word(mount)} | sort -h | tail` shows what fills it; remove some of it, or {another(node)}",
        (seen,),
    )


def _no_inodes(node: Node, place: Mapping[str, Any], seen: str) -> Finding:
    mount = place.get("mount", "/")
    return Finding(
        "disk-full",
        f"{node.name} has room for bytes but not for files where its workdir lies: {mount} has run out of inodes",
        f"on {node.name}: `df -i {word(mount)}` shows it, `sudo du -x --inodes -d 2 {word(mount)} | sort -n | tail` where they went; "
        f"remove some of them, or {another(node)}",
        (seen,),
    )


def another(node: Node) -> str:
    return f"name another `workdir:` for {node.name} in the inventory"
