"""Where the package writes commands for people, found in its syntax tree: which values each command takes in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from renderers import assigned, rendered
from syntax_trees import nodes

import runbook
from runbook.causes.catalogue import cause_pages

PACKAGE = Path(runbook.__file__).parent
PROGRAMS = (
    "sudo|ip|ping|tracepath|ethtool|ss|nft|iptables|ip6tables|tcpdump|sysctl|kill|less|ps|df|du|ls|cat|ibstat|rdma|"
    "ibportstate|perfquery|mlxlink|nvidia-smi|dmesg|journalctl|systemctl|ssh|ssh-add|ssh-copy-id|findmnt|quota|install|sed|tee|touch|ssh-keygen|ssh-keyscan|puttygen|"
    "chmod|chown|chage|nc|netsh|netstat|Test-NetConnection|firewall-cmd|ufw|tc|bpftool|py-spy|gdb|taskset|mount|umount|"
    "mkdir|rm|mv|cp|tar|time|getent|nslookup|dig|ldconfig|runbook|export|curl|wget|git|pip|conda|grep|head|tail|fuser|lsof|"
    "renice|numactl|lspci|modprobe|swapon|file|gzip|ulimit|printf|echo|pkill|killall|smartctl|timedatectl|chronyc|hostname"
)
COMMAND = re.compile(rf"(?:\w+=\S+ )*(?:{PROGRAMS})(?: |$)")
HOLE = "\ue000"


@dataclass(frozen=True)
class Hole:
    """A value that a command takes in: where, the command around it, and the expression."""

    file: str
    line: int
    command: str
    value: ast.expr

    @property
    def source(self) -> str:
        return ast.unparse(self.value)


def holes() -> Iterator[Hole]:
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).parts[0]
        if folder in ("node", "lint"):  # programs of the nodes; sentences on files, in which nothing is to be run
            continue
        for node in nodes(path):
            if isinstance(node, ast.JoinedStr):
                yield from _of(str(path.relative_to(PACKAGE)), node)
        yield from _of_pages(path)


def _of_pages(path: Path) -> Iterator[Hole]:
    """The values that a program fills into the commands of a cause's page; of a name, what is assigned to it."""
    for call in rendered(path):
        for cause, way in call.ways:
            text = cause_pages()[cause].remedies[way]
            for command in (at[1] for at in re.finditer(r"`([^`]*)`", text)):
                for field in re.findall(r"\{([a-z_][a-z0-9_]*)\}", command) if COMMAND.match(command) else ():
                    value = call.fields[field]
                    values = [*assigned(call.places, {value.id})] if isinstance(value, ast.Name) else []
                    for one in values or [value]:
                        yield Hole(str(path.relative_to(PACKAGE)), call.line, command, one)


def _of(file: str, node: ast.JoinedStr) -> Iterator[Hole]:
    values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
    spans = [(at.start(1), at.end(1)) for at in re.finditer(r"`([^`]*)`", text)]
    inside = [span for span in spans if COMMAND.match(text[slice(*span)])]
    if not spans and COMMAND.match(text):
        inside = [(0, len(text))]
    elif COMMAND.match(text) and text.startswith("sudo "):
        inside.append((0, text.index("`")))
    elif text.startswith(("less ", "ping ", "kill ", "ssh ", "ssh-keyscan ")):
        inside.append((0, len(text)))
    for number, at in enumerate(match.start() for match in re.finditer(HOLE, text)):
        for begin, end in inside:
            if begin <= at < end:
                yield Hole(file, node.lineno, text[begin:end].replace(HOLE, "{}"), values[number])
