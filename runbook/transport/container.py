"""A node's container: a second supervisor runs inside, and the supervisor on the host carries its stdin and stdout.

The container is entered by a program that the host's supervisor starts (`docker exec -i NAME /bin/sh …`), so the way is
the same over SSH, Slurm and on this machine, and needs no second login. Runtimes do not end what they started when
their client dies: the supervisor inside sees the end of its stdin, or gets no more beats, and cleans up by itself. So
the entering program is never signalled while that supervisor may live. Most of a machine cannot be seen from inside a
container: PROGRAMS_ON_HOST says which node programs look from the host. All others look where the job runs.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from runbook.causes.catalogue import unreachable_for
from runbook.files.scalars import flow_yaml
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.transport.bootstrap import bootstrap_command, no_shell_failure
from runbook.transport.frames import Failure, Frame
from runbook.transport.stream import END_TIMEOUT_S, SHOWN_STDERR_BYTES

if TYPE_CHECKING:
    from runbook.transport.session import Session


_TOOL_MISSING = re.compile(
    r"(?:sudo|env|exec)(?:: \d+)?: (?:\S+: )?['‘`]?(?P<tool>[\w./+-]+)['’]?: (?:command )?not found"
)
_ACCESS_DENIED = re.compile(
    r"permission denied while trying to connect|connect: permission denied|a (?:password|terminal) is required|"
    r"is not in the sudoers file|is not allowed to execute|reassociate to namespaces? .{0,300}Operation not permitted|"
    r"(?:cannot open|stat of) /proc/\d+/ns/[^\n]{1,40}Permission denied",
    re.IGNORECASE,
)
_RUNTIME_DOWN = re.compile(
    r"cannot connect to the docker daemon|failed to connect to the docker api|cannot connect to podman|"
    r"error during connect|unable to connect to podman",
    re.IGNORECASE,
)
_UNKNOWN_CONTAINER = re.compile(
    r"no such container|no container with name or ID|container does not exist|no instance found with name|"
    r"\[ERROR\] No such file or directory: |error opening file `[^`]{1,200}/status`: No such file",
    re.IGNORECASE,
)
_STOPPED_CONTAINER = re.compile(
    r"\bcontainer \S+ is not running|container `[^`]{1,200}` is not running|container state improper|"
    r"cannot exec in a stopped container|is paused, unpause|is restarting, wait|"
    r"(?:cannot open|stat of) /proc/\d+/ns/[^\n]{1,40}No such file",
    re.IGNORECASE,
)
_LOG_LINE = re.compile(
    r"level=(?:warning|info|debug)|^(?:INFO|WARNING|DEBUG):|Emulate Docker CLI using podman", re.MULTILINE
)

LIST_COMMANDS = {
    "docker": "docker ps --all",
    "podman": "podman ps --all",
    "enroot": "enroot list",
    "apptainer": "apptainer instance list",
}
START_COMMANDS = {
    "docker": "docker start {name}",
    "podman": "podman start {name}",
    "enroot": "enroot start {name}",
    "apptainer": "apptainer instance start --nv IMAGE {name}",
}


def stderr_evidence(complaint: str) -> tuple[str, ...]:
    """The last lines of what a runtime wrote to stderr, as evidence."""
    return tuple([line for line in complaint.splitlines() if line.strip() and not _LOG_LINE.search(line)][-4:])


def runtime_missing_failure(node: Node, tool: str, evidence: tuple[str, ...] = ()) -> Unreachable:
    """The failure for a host that does not have `tool`, by which its container is entered."""
    wants = (
        f"`container:` of {node.name} says `runtime: {node.container.runtime}`"
        if node.container
        else "`inside:` names it"
    )
    return unreachable_for(
        "container-runtime-missing",
        f"there is no `{tool}` {'' if '/' in tool else 'on the PATH of the login '}on {node.name}, and {wants}",
        evidence,
        way="live",
        node=node.name,
        tool=shell_word(tool),
    )


def container_entry_failure(node: Node, complaint: str) -> Unreachable | None:
    """The failure that a runtime's stderr means when the node's container cannot be entered; None for unknown words."""
    seen, at = stderr_evidence(complaint), node.name
    text = "\n".join(seen)
    if missing := _TOOL_MISSING.search(text):
        return runtime_missing_failure(node, missing["tool"], seen)
    if _ACCESS_DENIED.search(text):
        words = ["sudo", "-n", *("-i" if one == "--interactive" else one for one in node.entry)]
        return unreachable_for(
            "container-runtime-denied",
            f"the login on {at} may not enter {node.place}: `{node.entry[0]}` is refused",
            seen,
            way="sudo-asks" if "sudo" in text else "docker-group" if node.entry[0] == "docker" else "by-sudo",
            node=at,
            inside=flow_yaml(words),
        )
    if _RUNTIME_DOWN.search(text):
        daemon = "podman" if node.entry[0] == "podman" else "docker"
        return unreachable_for(
            "container-runtime-down",
            f"`{node.entry[0]}` on {at} reaches no daemon that has containers",
            seen,
            way="live",
            at=at,
            daemon=shell_word(daemon),
        )
    if _STOPPED_CONTAINER.search(text):
        return stopped_container_failure(node, "is not running", seen)
    if _UNKNOWN_CONTAINER.search(text):
        return _unknown_container_failure(node, seen)
    return no_shell_failure(node.place, seen)


def stopped_container_failure(node: Node, how: str, evidence: tuple[str, ...]) -> Unreachable:
    """The failure for a container that exists and does not run; `how` ends the sentence."""
    cause, says = "container-not-running", f"{node.place} {how}"
    if node.container is None:
        return unreachable_for(cause, says, evidence, way="inside", node=node.name)
    runtime, name = node.container.runtime, shell_word(node.container.name)
    return unreachable_for(
        cause,
        says,
        evidence,
        way="logs" if runtime in ("docker", "podman") else "start",
        node=node.name,
        runtime=runtime,
        name=name,
        start=START_COMMANDS[runtime].format(name=name),
    )


def _unknown_container_failure(node: Node, evidence: tuple[str, ...]) -> Unreachable:
    """The failure for a container that does not exist."""
    runtime, name = (node.container.runtime, node.container.name) if node.container else ("", "")
    if runtime:
        way = "podman" if runtime == "podman" else "not-listed"
        says = f"{runtime} on {node.name} knows no container {name}, as this user"
    else:
        way, says = "live", f"`inside:` of {node.name} leads to a container that does not exist"
    lists = LIST_COMMANDS.get(runtime)
    return unreachable_for("container-unknown", says, evidence, way=way, node=node.name, lists=lists, name=name)


def container_unreachable(node: Node, says: str, evidence: tuple[str, ...]) -> Unreachable:
    """The failure for a container in which no program answers, when nothing more is known."""
    typed = " ".join(map(shell_word, node.entry))
    return unreachable_for(
        "container-unreachable",
        f"{says}; {node.name} itself answers",
        evidence or (f"`{typed} /bin/sh` ended without a word",),
        way="live",
        node=node.name,
        typed=typed,
    )


GOODBYE_TIMEOUT_S = 5.0
"""How long the supervisor on the host may take to clean up."""

ANSWER_DEADLINE_S = 3.0
"""How long a runtime may take to report the state of a container."""

STATE_REPORTING_RUNTIMES = ("docker", "podman")
"""Runtimes that can report the state of a container."""

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AskedOnHost:
    """How a node program is asked both in the container and on its host. `merged` makes one answer of the container's
    and the host's, in this order. `ours` and `theirs` make the arguments for the container and for the host. `network`:
    the host is asked only when both share a network. `in_turn`: the host is asked after the container has answered,
    since the two would disturb each other."""

    merged: Callable[[JsonObject, JsonObject], JsonObject]
    ours: Callable[[JsonObject], JsonObject] = dict
    theirs: Callable[[JsonObject], JsonObject] = dict
    network: bool = False
    in_turn: bool = False


def _take_host_answer(_job: JsonObject, host: JsonObject) -> JsonObject:
    return host


def _merge_collect_answers(job: JsonObject, host: JsonObject) -> JsonObject:
    """The host's answers about its tools, and the container's about Python and the settings of NCCL."""

    def of_job(one: JsonObject) -> bool:
        return str(one["name"]).startswith(("python", "nccl/"))

    both = [*(one for one in host["answers"] if not of_job(one)), *(one for one in job["answers"] if of_job(one))]
    return {**host, "answers": both}


def _merge_gpu_answers(job: JsonObject, host: JsonObject) -> JsonObject:
    """The devices as the container sees them. Only the host knows the kernel's log and the processes on the devices."""
    of_host = {"dmesg", "journal"}
    if (host.get("apps") or {}).get("code") == 0:
        of_host |= {"apps", "processes"}
    return {**job, **{name: host[name] for name in of_host & host.keys()}}


def _merge_ping_answers(job: JsonObject, host: JsonObject) -> JsonObject:
    """Names as the container resolves them; the network as the host's tools show it: few images have `ip` and
    `ping`."""
    names = ("names", "hostname", "own", "nameservers", "name_sources", "hosts_unreadable", "reverse_late")
    return {**host, **{name: job[name] for name in names if name in job}}


def _merged_port_facts(job: JsonObject, host: JsonObject) -> JsonObject:
    """The container's view of the ports. For a port that both see as taken, the host's view when it knows the process
    that holds it, which may run outside the container: its pid is the host's then (`on_host`)."""
    theirs = {
        port: {**found, "on_host": True}
        for port, found in host["ports"].items()
        if not found["free"] and not job["ports"][port]["free"] and (found.get("holder") or {}).get("pid")
    }
    return {**job, "ports": {**job["ports"], **theirs}}


PROGRAMS_ON_HOST: Mapping[str, AskedOnHost] = {
    "collect": AskedOnHost(_merge_collect_answers),
    "gpus": AskedOnHost(_merge_gpu_answers),
    "ibstat": AskedOnHost(_take_host_answer),
    "adapters": AskedOnHost(_take_host_answer, network=True),
    "ping": AskedOnHost(
        _merge_ping_answers,
        ours=lambda asked: {**asked, "targets": []},
        theirs=lambda asked: {**asked, "names": [], "hostname": False},
        network=True,
    ),
    "port": AskedOnHost(
        _merged_port_facts, network=True, in_turn=True
    ),  # of two that bind one port, one finds it taken
    # `outside`: whether the address that the peers dial is one of the host's own.
    "host_facts": AskedOnHost(lambda job, host: {**job, "outside": host.get("own")}),
    "firewall_rules": AskedOnHost(_take_host_answer, network=True),
}
"""The node programs that are asked on the host as well, by name. All others look only where the job runs."""


class ContainerStream:
    """The stdin and stdout of a supervisor in the node's container. `outside` is the session on the host; closing the
    stream says goodbye to it too."""

    unanswered: ClassVar[str] = "container-unreachable"

    def __init__(self, outside: Session, node: Node) -> None:
        self.outside = outside
        self.shared = outside.shared
        self._node = node
        self._arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._complaint = b""
        self._failure: Failure | None = None
        self._over = threading.Event()
        self._closed = threading.Lock()
        self._program = outside.carry([*node.entry, "/bin/sh", "-c", bootstrap_command(node.interpreter)], self)

    # Called by the host's session.

    def handle(self, frame: Frame, payload: bytes) -> None:
        if frame.event == "output" and frame.stream == 1:
            self._arrived.put(payload)
        elif frame.event == "output":
            self._complaint = (self._complaint + payload)[-SHOWN_STDERR_BYTES:]
        elif frame.event == "failed":
            self._failure = frame.error
            self._end()
        elif frame.event == "exit":
            self._end()

    def lose(self, _reason: Unreachable) -> None:
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._arrived.put(b"")

    # Called by the session inside.

    def write(self, data: bytes) -> None:
        if self._over.is_set():
            raise BrokenPipeError(f"the connection into {self._node.place} has ended")
        try:
            self.outside.feed(self._program, data)
        except Unreachable as lost:
            raise BrokenPipeError(str(lost)) from lost

    def read(self) -> bytes:
        data = self._arrived.get()
        if not data:
            self._arrived.put(b"")  # the end is final
        return data

    def close(self) -> None:
        if not self._closed.acquire(blocking=False):
            return
        with contextlib.suppress(Unreachable):
            self.outside.feed(self._program, b"", end=True)
            self._over.wait(END_TIMEOUT_S)
        with contextlib.suppress(Unreachable):
            self.outside.goodbye(timeout_s=GOODBYE_TIMEOUT_S)

    def kill(self) -> None:
        with contextlib.suppress(Unreachable):
            self.outside.order({"do": "signal", "program": self._program, "signal": "SIGKILL"})

    def complaint(self) -> str:
        return self._complaint.decode(errors="replace").strip()

    def why(self, says: str) -> Unreachable:
        if self.outside.lost:
            return self.outside.lost
        complaint, node = self.complaint(), self._node
        if self._failure is not None:
            text = self._failure["text"]
            if self._failure["errno"] == "ENOENT":
                return runtime_missing_failure(node, node.entry[0], (text,))
            complaint = f"{node.entry[0]}: {text}"
        fault = container_entry_failure(node, complaint) or self._state(stderr_evidence(complaint))
        if self.outside.lost:
            return self.outside.lost
        return fault or container_unreachable(node, says, stderr_evidence(complaint))

    def _state(self, seen: tuple[str, ...]) -> Unreachable | None:
        """The fault that the runtime reports of the container's state; None when it runs or its state is unknown."""
        container = self._node.container
        if container is None or container.runtime not in STATE_REPORTING_RUNTIMES:
            return None
        question = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
        ask = [container.runtime, "container", "inspect", "--format", question, container.name]
        try:
            answer = self.outside.start(ask, timeout_s=ANSWER_DEADLINE_S).wait(ANSWER_DEADLINE_S + 1.0)
        except (Unreachable, RuntimeError):
            return None
        words = answer.stdout.split()
        if answer.code != 0 or len(words) != 3:
            return container_entry_failure(self._node, answer.stderr)
        state, code, no_memory = words
        evidence = (*seen, f"{container.runtime} container inspect: {state}, exit code {code}")
        if state == "running":
            return None
        if state == "paused":
            return stopped_container_failure(self._node, "is paused: nothing in it runs until it is unpaused", evidence)
        how = "ran out of memory and ended" if no_memory == "true" else "has ended"
        return stopped_container_failure(self._node, f"{how} ({state}, exit code {code})", evidence)
