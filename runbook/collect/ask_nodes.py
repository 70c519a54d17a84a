"""Asks all nodes at once for an archive: what each answered, or why it could not be asked. Every wait has a
deadline."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from runbook.collect.archive import UNFIT_KIND, Absent, ArchiveFile
from runbook.files.address import is_loopback
from runbook.launch.script import activation_lines
from runbook.model.errors import Unreachable
from runbook.model.inventory import Inventory, Node
from runbook.transport.node_answers import COLLECT_PROGRAM, Collected, CollectedAnswer
from runbook.transport.node_sessions import Site
from runbook.transport.remote_program import ProgramNotStarted

COLLECT_DEADLINE_S = 26.0
"""How long the program `collect` may look around on a node."""
COLLECT_CALL_TIMEOUT_S = 30.0
"""How long we wait for its answer."""
MAX_NODE_CHARACTERS = 4 * 1024 * 1024
"""Characters of all files of one node."""
MAX_STDOUT_CHARACTERS = 512 * 1024
"""Characters of one tool's output: twice what the program on the node keeps."""
MAX_STDERR_CHARACTERS = 64 * 1024
"""Characters of one tool's stderr."""
MAX_HOSTNAMES = 20_000
MAX_LOOKUP_ADDRESSES = 8
"""The most addresses that a node is asked to look up."""
MAX_NODE_REASON_CHARACTERS = 400
WINDOWS_NODE = "windows-node"
"""The cause for a node that is not asked, since it runs Windows."""
TOOL_NAME = re.compile(r"(?:[a-z][a-z0-9-]{0,31}/)?[A-Za-z0-9](?:[A-Za-z0-9_.+@-]{0,78}[A-Za-z0-9_+-])?")
"""The name of a tool's answer, which becomes a file's name here. A name with two dots in a row is refused as well."""

# The prefixes of environment variables that say how a job finds its network, GPUs and libraries.
COLLECTED_VARIABLE_PREFIXES = tuple(
    """NCCL_ GLOO_ TORCH_ TORCHELASTIC_ PYTORCH_ CUDA_ NVIDIA_ UCX_ OMPI_MCA_ UCC_ RCCL_ HSA_ ROCM_ HIP_ ROCR_ GPU_
    XLA_ JAX_ OMP_ MKL_ KMP_ FI_ RDMA IBV_ MLX SHARP_ SLURM_ MASTER_ WORLD_SIZE RANK LOCAL_ NODE_RANK GROUP_RANK
    LD_LIBRARY_PATH LD_PRELOAD PATH PYTHON CONDA_DEFAULT_ENV CONDA_PREFIX VIRTUAL_ENV LANG LC_ALL TZ TMPDIR""".split()
)


@dataclass(slots=True)
class NodeAnswer:
    """What one node gave; if nothing, `failure` says why."""

    node: str
    entries: list[ArchiveFile] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    people: list[tuple[str, str, str]] = field(default_factory=list)  # login name, home, full name
    hostnames: list[str] = field(default_factory=list)
    seconds: float | None = None
    failure: Unreachable | None = None

    @property
    def asked(self) -> bool:
        return self.failure is None

    @property
    def whole(self) -> bool:
        """Whether the node was asked, and all parts of its answer were valid."""
        return self.asked and not any(one.kind == UNFIT_KIND for one in self.absent)


def ask_nodes(
    inventory: Inventory, nodes: Sequence[Node], *, forks: int, run_began: float | None = None
) -> list[NodeAnswer]:
    """Log in to all nodes and have them look around; returns an answer for each. `run_began` is when the run began by
    this machine's clock, in seconds since 1970. Ctrl-C closes every session."""
    found = {node.name: _windows_node_answer(node) if node.windows else NodeAnswer(node.name) for node in nodes}
    # The session's own folder goes to /tmp: nothing may stay behind, not even an empty ~/.runbook. An agent's owner
    # says which workdirs there may be.
    asked = [
        node if node.connection == "agent" else replace(node, workdir="/tmp") for node in nodes if not node.windows
    ]
    site = Site(f"collect-{secrets.token_hex(4)}", forks=forks, inventory=inventory.source, looks=True)
    try:
        site.open(asked)
        reached = [node for node in asked if node.name in site.sessions]
        age = None if run_began is None else max(0.0, time.time() - run_began)
        arguments = {node.name: {**_collect_arguments(inventory, node), "age": age} for node in reached}
        waves = -(-max(1, len(reached)) // forks)

        def ask(node: Node) -> Collected:
            return site.sessions[node.name].call(
                COLLECT_PROGRAM, arguments[node.name], timeout_s=COLLECT_CALL_TIMEOUT_S
            )

        answers = site.each(reached, ask, timeout_s=(COLLECT_CALL_TIMEOUT_S + 2.0) * waves)
        for name, failure in site.failures.items():
            record_failure(found[name], failure)
        for name, answer in answers.items():
            if isinstance(answer, BaseException):
                record_failure(found[name], answer)
            else:
                record_answer(found[name], answer)
    finally:
        site.close()
    return list(found.values())


def _windows_node_answer(node: Node) -> NodeAnswer:
    says = f"{node.name} is a Windows node, and was not asked: what to look at there is not known to this version"
    remedy = f"send what `ipconfig /all` and `nvidia-smi` print on {node.name}"
    return NodeAnswer(node.name, failure=Unreachable(WINDOWS_NODE, says, remedy))


def _collect_arguments(inventory: Inventory, node: Node) -> dict[str, object]:
    """The arguments of the node program `collect`."""
    rendezvous = inventory.rendezvous
    others = [other.address for other in inventory.nodes if not is_loopback(other.address)]
    ports = list(inventory.network.ports)
    if not any(first <= rendezvous.port <= last for first, last in ports):
        ports.insert(0, (rendezvous.port, rendezvous.port))
    return {
        "addresses": list(dict.fromkeys([rendezvous.address, *others]))[:MAX_LOOKUP_ADDRESSES],
        "ports": [list(pair) for pair in dict.fromkeys(ports)],
        "python": node.interpreter,
        "activate": node.activate,
        "begin": activation_lines(node.activate) if node.activate else "",
        "names": list(COLLECTED_VARIABLE_PREFIXES),
        "seconds": COLLECT_DEADLINE_S,
    }


def record_failure(found: NodeAnswer, failure: BaseException) -> None:
    """Record why a node gave nothing. Raises `failure` again if it is no Exception, such as KeyboardInterrupt."""
    if isinstance(failure, Unreachable):
        found.failure = failure
    elif isinstance(failure, (ProgramNotStarted, TimeoutError)):
        why = "gave no answer in time" if isinstance(failure, TimeoutError) else f"could not look: {failure}"
        says = f"{found.node} {printable_beginning(why, MAX_NODE_REASON_CHARACTERS)}"
        stuck = "`ps axo stat,pid,cmd | grep '^D'`"
        remedy = f"look at the load of {found.node}, and for processes in state D ({stuck})"
        found.failure = Unreachable("tool-output-unknown", says, remedy)
    elif isinstance(failure, Exception):  # whatever the error, the other nodes' answers are worth sending
        why = printable_beginning(f"{type(failure).__name__}: {failure}", MAX_NODE_REASON_CHARACTERS)
        says = f"{found.node} gave an answer that could not be understood: {why}"
        remedy = f"ask again; if it stays, look at {found.node} by hand"
        found.failure = Unreachable("tool-output-unknown", says, remedy)
    else:
        raise failure


def record_answer(found: NodeAnswer, said: Collected) -> None:
    """Record a node's answer. A part that cannot have a file of its own is left out, and reported as absent."""
    found.seconds = said["seconds"]
    found.people = [(login, home, full) for login, home, full in said["users"]]
    found.hostnames = said["hostnames"][:MAX_HOSTNAMES]
    folder = f"nodes/{found.node}"
    tools, misfits = _answers_by_file(said["answers"])
    found.absent = [Absent(f"{folder}/{part}", why, UNFIT_KIND, found.node) for part, why in misfits.items()]
    room = MAX_NODE_CHARACTERS
    for file, one in tools.items():
        place, status = f"{folder}/{file}", one["status"]
        command = printable_beginning(one["command"])
        out, cut = _first_whole_lines(one["out"], MAX_STDOUT_CHARACTERS)
        err, _ = _first_whole_lines(one["err"], MAX_STDERR_CHARACTERS)
        why = _tool_failure_reason(one, err or out)
        if status in ("missing", "failed") or (status in ("denied", "timeout") and not out):
            found.absent.append(Absent(place, why, status, found.node, command or None))
            continue
        text = _terminal_transcript(one, command, out, err)
        if len(text) > room:
            why = f"{found.node} has given more than {MAX_NODE_CHARACTERS >> 20} MiB already"
            found.absent.append(Absent(place, why, "left out", found.node, command))
            continue
        room -= len(text)
        found.entries.append(
            ArchiveFile(
                place,
                text,
                node=found.node,
                command=command,
                code=one["code"],
                seconds=one["seconds"],
                left_out=one["left_out"] + cut,
                trouble=None if status == "ok" else f"{status}: {why}",
            )
        )


def _answers_by_file(parts: Iterable[CollectedAnswer]) -> tuple[dict[str, CollectedAnswer], dict[str, str]]:
    """The parts of an answer by the file that each becomes below the node's folder; and for parts that become no file,
    the reason by `answer-NUMBER`."""
    files: dict[str, CollectedAnswer] = {}
    folded: set[str] = set()
    misfits: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = part["name"]
        file = name + ("" if "." in name.rpartition("/")[2] else ".txt")
        if not TOOL_NAME.fullmatch(name) or ".." in name:
            misfits[f"answer-{number}"] = f"`name` is not a tool's name: {name[:40]!a}"
        elif file.casefold() in folded:
            misfits[f"answer-{number}"] = f"there is a {file} already"
        else:
            folded.add(file.casefold())
            files[file] = part
    return files, misfits


def printable_beginning(text: str, most: int | None = None) -> str:
    """The first `most` characters of a text, with a space for every character that is not printable."""
    return "".join(char if char.isprintable() else " " for char in text[:most])


def _first_whole_lines(text: str, most: int) -> tuple[str, int]:
    """The first lines of a text, `most` characters at most, and how many characters are left out. Lines stay whole,
    since half a secret is a secret too."""
    if len(text) <= most:
        return text, 0
    kept = text[: text.rfind("\n", 0, most) + 1]
    return kept, len(text) - len(kept)


def _tool_failure_reason(one: CollectedAnswer, text: str) -> str:
    """Why a tool gave nothing, or not all: the last line that it printed, or that it was too slow."""
    lines = text.strip().splitlines()
    if lines:
        return lines[-1][:300]
    return f"it did not end within {one['seconds']:.0f} s" if one["status"] == "timeout" else "no reason was given"


def _terminal_transcript(one: CollectedAnswer, command: str, out: str, err: str) -> str:
    """A tool's answer as a terminal would show it: the command, its output, and how it ended if it failed."""
    parts = [f"$ {command}\n", out]
    if out and not out.endswith("\n"):
        parts.append("\n")
    if err.strip():
        parts += ["[stderr]\n", err.rstrip("\n"), "\n"]
    if one["code"]:
        parts.append(f"[exit code {one['code']}]\n")
    if one["status"] == "timeout":
        parts.append(f"[ended by its deadline after {one['seconds']:.0f} s]\n")
    return "".join(parts).replace("\0", "")
