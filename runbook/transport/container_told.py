"""What container runtimes print where they let nobody in, and what it means for a node's container. Pure."""

from __future__ import annotations

import re

from runbook.load.scalars import flow
from runbook.model.commands import word
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node

_MISSING = re.compile(r"(?:sudo|env|exec)(?:: \d+)?: (?:\S+: )?['‘`]?(?P<tool>[\w./+-]+)['’]?: (?:command )?not found")
_DENIED = re.compile(
    r"permission denied while trying to connect|connect: permission denied|a (?:password|terminal) is required|"
    r"is not in the sudoers file|is not allowed to execute|reassociate to namespaces? .*Operation not permitted|"
    r"(?:cannot open|stat of) /proc/\d+/ns/[^\n]{1,40}Permission denied",
    re.IGNORECASE,
)
_DOWN = re.compile(
    r"cannot connect to the docker daemon|failed to connect to the docker api|cannot connect to podman|"
    r"error during connect|unable to connect to podman",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(
    r"no such container|no container with name or ID|container does not exist|no instance found with name|"
    r"\[ERROR\] No such file or directory: |error opening file `[^`]{1,200}/status`: No such file",
    re.IGNORECASE,
)
_STOPPED = re.compile(
    r"\bcontainer \S+ is not running|container `[^`]{1,200}` is not running|container state improper|"
    r"cannot exec in a stopped container|is paused, unpause|is restarting, wait|"
    r"(?:cannot open|stat of) /proc/\d+/ns/[^\n]{1,40}No such file",
    re.IGNORECASE,
)
_NO_SHELL = re.compile(r"/bin/sh[^\n]{0,80}(?:no such file|not found)", re.IGNORECASE)
_CHATTER = re.compile(
    r"level=(?:warning|info|debug)|^(?:INFO|WARNING|DEBUG):|Emulate Docker CLI using podman", re.MULTILINE
)

LISTS = {
    "docker": "docker ps --all",
    "podman": "podman ps --all",
    "enroot": "enroot list",
    "apptainer": "apptainer instance list",
}
STARTS = {
    "docker": "docker start {name}",
    "podman": "podman start {name}",
    "enroot": "enroot start {name}",
    "apptainer": "apptainer instance start --nv IMAGE {name}",
}


def said(complaint: str) -> tuple[str, ...]:
    """The last lines of what a runtime wrote to stderr, as evidence."""
    return tuple([line for line in complaint.splitlines() if line.strip() and not _CHATTER.search(line)][-4:])


def runtime_missing(node: Node, tool: str, evidence: tuple[str, ...] = ()) -> Unreachable:
    wants = (
        f"`container:` of {node.name} says `runtime: {node.container.runtime}`"
        if node.container
        else "`inside:` names it"
    )
    return Unreachable(
        "container-runtime-missing",
        f"there is no `{tool}` {'' if '/' in tool else 'on the PATH of the login '}on {node.name}, and {wants}",
        f"on {node.name}: `command -v {word(tool)}` as the same user; install it, name the runtime that is there, or give its full "
        "path: `inside: [/opt/bin/…, exec, …]`",
        evidence,
    )


def refusal(node: Node, complaint: str) -> Unreachable | None:
    """What the words of a runtime mean that did not let us into the node's container; None where they tell nothing."""
    seen, at = said(complaint), node.name
    text = "\n".join(seen)
    if missing := _MISSING.search(text):
        return runtime_missing(node, missing["tool"], seen)
    if _DENIED.search(text):
        return Unreachable(
            "container-runtime-denied",
            f"the login on {at} may not enter {node.place}: `{node.entry[0]}` is refused",
            _with_rights(node, text),
            seen,
        )
    if _DOWN.search(text):
        daemon = "podman" if node.entry[0] == "podman" else "docker"
        return Unreachable(
            "container-runtime-down",
            f"`{node.entry[0]}` on {at} reaches no daemon that has containers",
            f"on {at}: `systemctl status {word(daemon)}`; where the daemon listens elsewhere, "
            "name that: `inside: [docker, --host, unix:///…, exec, -i, NAME]`",
            seen,
        )
    if _STOPPED.search(text):
        return stopped(node, "is not running", seen)
    if _UNKNOWN.search(text):
        return _unknown(node, seen)
    if _NO_SHELL.search(text):
        return Unreachable(
            "python-missing",
            f"{node.place} has no /bin/sh, and so no Python either that could be found",
            "take an image with a shell and Python 3.8 or newer; minimal ones (distroless, scratch) have neither",
            seen,
        )
    return None


def stopped(node: Node, how: str, evidence: tuple[str, ...]) -> Unreachable:
    """For a container that is there and runs nothing; `how` ends the sentence."""
    remedy = f"see on {node.name} what ended it, and start it again with a command that stays"
    if node.container is not None:
        start = STARTS[node.container.runtime].format(name=word(node.container.name))
        logs = f"`{node.container.runtime} logs --tail 20 {word(node.container.name)}` tells why it ended; "
        remedy = f"on {node.name}: {logs if node.container.runtime in ('docker', 'podman') else ''}start it: `{start}`"
    return Unreachable("container-not-running", f"{node.place} {how}", remedy, evidence)


def _unknown(node: Node, evidence: tuple[str, ...]) -> Unreachable:
    if node.container is None:
        return Unreachable(
            "container-unknown",
            f"`inside:` of {node.name} leads to a container that is not there",
            f"start it, or correct `inside:` of {node.name}",
            evidence,
        )
    runtime, name = node.container.runtime, node.container.name
    remedy = f"on {node.name}: `{LISTS[runtime]}` lists them; start it, or correct `name:`"
    if runtime == "podman":
        remedy += (
            "; each user has containers of their own: one of root's is entered by "
            f"`inside: [sudo, -n, podman, exec, -i, {name}]`"
        )
    return Unreachable(
        "container-unknown", f"{runtime} on {node.name} knows no container {name}, as this user", remedy, evidence
    )


def _with_rights(node: Node, text: str) -> str:
    if "sudo" in text:
        return f"allow it without a password on {node.name} (`sudo visudo -f /etc/sudoers.d/runbook`), or log in as a user who may"
    words = ["-i" if one == "--interactive" else one for one in node.entry]
    remedy = f"go through sudo: `inside: {flow(['sudo', '-n', *words])}`"
    if node.entry[0] == "docker":
        remedy = f"on {node.name}: `sudo usermod -aG docker $USER` and a new login (which is as good as root there); or {remedy}"
    return remedy


def unreachable(node: Node, says: str, evidence: tuple[str, ...]) -> Unreachable:
    """For a container that nothing is known of but that nobody answers in it."""
    typed = " ".join(map(word, node.entry))
    return Unreachable(
        "container-unreachable",
        f"{says}; {node.name} itself answers",
        f"on {node.name}, as the same user: `{typed} /bin/sh -c 'echo it answers'`",
        evidence or (f"`{typed} /bin/sh` ended without a word",),
    )
