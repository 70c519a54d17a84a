"""What a check is given: the nodes, the sessions with them, the facts known of them so far, and where to report."""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from runbook.causes.catalogue import finding_for, unreachable_for
from runbook.files.address import is_loopback, normal_spelling, preferred_address
from runbook.launch.ranks import socket_interface
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.inventory import Inventory, Node
from runbook.model.nccl_devices import select_interfaces
from runbook.model.redact import Redactor
from runbook.model.verdict import Finding, Outcome
from runbook.transport.bootstrap import NoPython
from runbook.transport.node_answers import HOST_FACTS_PROGRAM, AnswerType, Asked, HostFacts
from runbook.transport.node_sessions import Site
from runbook.transport.pause_detector import MAX_QUESTION_WAIT_S
from runbook.transport.remote_program import Answer, ProgramNotStarted
from runbook.transport.session import SILENCE_TIMEOUT_S, Session

T = TypeVar("T")
Facts = dict[str, Any]
"""Facts that a node tells, in JSON's types."""

MAX_CHECK_WAIT_S = 3600.0
"""Seconds: the longest single wait of a check, and the deadline of a question without one of its own."""

NOT_SAFE_ERROR = "NotSafe"
"""The type of the error that a node reports when other users could change the contents of a folder."""

SYSTEM_FOLDERS = ("/proc", "/sys", "/dev/", "/etc/", "/usr/", "/bin/", "/sbin/", "/lib")
"""Folders of the system: an error on a file in one of them says nothing about the workdir."""

TORCH_IMPORT_TIMEOUT_S = 90.0
"""Seconds within which every rank must have imported torch."""

MAX_NODE_QUIET_S = 2.0
"""Seconds. A node that sends nothing for longer may be about to be lost; after SILENCE_TIMEOUT_S it counts as lost."""


class StandingRanks(Protocol):
    """Ranks that stay up from one stage to the next; `runbook.checks.ranks.pool` starts them."""

    joined: bool

    def dismiss(self) -> None:
        """Ends the ranks."""

    def close(self) -> None:
        """Closes the files that keep what the ranks print."""


@dataclass
class Run:
    """What the stages of one run share. `facts`: what `reach` learned, by node. `pool`: the ranks that are up.
    `attempts`: how many attempts were started; each has a folder of its own. `tried`: by stage, the causes of the
    failed attempts before one that goes on with a spare. `leaving`: the nodes that this spare is for, and why they
    leave. `looked_up`: the addresses that this machine found for host names. `made_from`: the files that the plan was
    made from."""

    run_id: str
    run_dir: Path
    site: Site
    facts: dict[str, Any] = field(default_factory=dict)
    pool: StandingRanks | None = None
    attempts: int = 0
    tried: dict[str, list[str]] = field(default_factory=dict)
    leaving: dict[str, str] = field(default_factory=dict)
    looked_up: dict[str, str] = field(default_factory=dict)
    made_from: tuple[str, ...] = ()
    redactor: Redactor = field(default_factory=lambda: Redactor(()))
    stopping: threading.Event = field(default_factory=threading.Event)  # the user wants the run to end
    hurry: threading.Event = field(default_factory=threading.Event)  # the user does not want to wait for that


@dataclass(frozen=True)
class Context:
    """One stage at work. `inventory` holds only the nodes of this stage; `deadline` is on the monotonic clock.

    `script` is the name of the launch script that starts the ranks of this stage. For `reach` it names the script for
    the ranks of later stages, which `reach` starts.
    """

    run: Run
    inventory: Inventory
    stage: str
    deadline: float
    say: Callable[..., None]  # say(text, node=None, rank=None, data={})
    needs_pool: Inventory | None = None  # for `reach`: the nodes on which later stages will start ranks
    script: str = "ranks"

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.inventory.nodes

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @property
    def stopping(self) -> threading.Event:
        return self.run.stopping

    @property
    def hurry(self) -> threading.Event:
        return self.run.hurry

    @property
    def left_s(self) -> float:
        """Seconds until the stage's deadline, at least 0.1 and at most MAX_CHECK_WAIT_S: a launch may last for any
        time, but every single wait must end."""
        return max(0.1, min(self.deadline - time.monotonic(), MAX_CHECK_WAIT_S))

    def session(self, node: Node) -> Session:
        """The session with a node. Raises Unreachable, with the reason, when there is none."""
        session = self.run.site.sessions.get(node.name)
        if session is None:
            raise self.run.site.failures.get(node.name) or unreachable_for(
                "ssh-unreachable", f"there is no connection to {node.name}", way="lost", node=node.name
            )
        return session

    def each(
        self,
        work: Callable[[Node], T],
        nodes: Iterable[Node] | None = None,
        *,
        timeout_s: float = MAX_CHECK_WAIT_S,
        paced: bool = False,
    ) -> dict[str, T | BaseException]:
        """The result of `work` for every node, or the exception it raised, by node name. All nodes are worked on in
        parallel, until the stage's deadline or for `timeout_s`. With `paced`, calls begin no faster than this machine
        keeps up: hundreds of short questions at once would use up each other's deadlines."""
        site = self.run.site

        def in_turn(node: Node) -> T:
            with site.pace.turn(MAX_QUESTION_WAIT_S):
                return work(node)

        chosen, timeout_s = self.nodes if nodes is None else nodes, min(timeout_s, self.left_s)
        return dict(site.each(chosen, in_turn if paced else work, timeout_s=timeout_s))

    def reached(self, names: Collection[str]) -> list[Node]:
        """The nodes among `names` that have a session."""
        return [node for node in self.nodes if node.name in names and node.name in self.run.site.sessions]

    def ask(
        self,
        program: Asked[AnswerType],
        arguments: Callable[[Node], Facts],
        *,
        timeout_s: float,
        nodes: Iterable[Node] | None = None,
    ) -> dict[str, AnswerType | Outcome]:
        """Runs a node program on every node. The result has, by node name, the program's answer, or the outcome that
        says why there is none."""

        def one(node: Node) -> AnswerType:
            session = self.session(node)
            _ = session.folder  # a node without a folder for the run is reported as such, whatever the question is
            return session.call(program, arguments(node), timeout_s=min(timeout_s, self.left_s))

        said: dict[str, AnswerType | Outcome] = {}
        for name, answer in self.each(one, nodes, paced=True).items():
            said[name] = no_answer_outcome(name, program, answer) if isinstance(answer, BaseException) else answer
        return said

    def lost_nodes(self) -> dict[str, Outcome]:
        """An outcome for each node that was lost meanwhile. Waits until each silent node either answers again or counts
        as lost."""
        sessions = {node.name: self.run.site.sessions.get(node.name) for node in self.nodes}
        deadline = time.monotonic() + SILENCE_TIMEOUT_S + 1.5
        while time.monotonic() < deadline and any(
            session and not session.lost and session.silence_s > MAX_NODE_QUIET_S for session in sessions.values()
        ):
            time.sleep(0.1)
        return {name: no_answer_outcome(name, "beat", s.lost) for name, s in sessions.items() if s and s.lost}

    # What the nodes tell about themselves.

    def learn_hosts(self, *, timeout_s: float = 30.0) -> dict[str, HostFacts | Outcome]:
        """Asks every node for its host facts, which `facts` returns from then on. `reach` calls this, and so does a
        command that follows a job of an earlier run."""
        known = self.ask(
            HOST_FACTS_PROGRAM,
            lambda node: {"address": node.address} if node.place != node.name else {},
            timeout_s=timeout_s,
        )
        self.run.facts.update({name: found for name, found in known.items() if not isinstance(found, Outcome)})
        return known

    def facts(self, node: str) -> Mapping[str, Any]:
        """What `learn_hosts` learned about a node; empty when it gave no answer."""
        known: Mapping[str, Any] = self.run.facts.get(node, {})
        return known

    def own_addresses(self, node: str) -> list[str]:
        """Every address on the node's interfaces except loopback."""
        interfaces: Mapping[str, Facts] = self.facts(node).get("interfaces", {})
        return [a for entry in interfaces.values() for a in entry["addresses"] if not is_loopback(a)]

    def data_address(self, node: Node) -> str:
        """The address on this node that other ranks dial: an address of the node's interface where the inventory names
        one, else the node's own address."""
        interfaces: Mapping[str, Facts] = self.facts(node.name).get("interfaces", {})
        expression = socket_interface(self.inventory, node)
        chosen = [interfaces[name] for name in select_interfaces(expression, interfaces)] if expression else []
        addresses = [address for entry in chosen for address in entry["addresses"]]
        if not addresses or normal_spelling(node.address) in addresses or self.inventory.one_machine:
            return node.address
        return preferred_address(addresses)

    def machine(self, node: str) -> str:
        """The id of the node's machine, which nodes on one machine have in common; the node's name when there is no
        session."""
        session = self.run.site.sessions.get(node)
        return str(session.hello["machine"]) if session else node


def no_answer_outcome(node: str, program: str, got: object) -> Outcome:
    """The outcome for a node whose program gave no answer: the node was lost, or the program did not start, took too
    long or broke."""
    if isinstance(got, Unreachable):
        finding = got.finding
        if got.cause == "login-shell-failed":  # the shell prints the limit it met before it exits
            finding = login_limit_finding(node, "first", "", "\n".join(got.evidence)) or finding
        return Outcome.failed(node, finding) if isinstance(got, NoPython) else Outcome.unknown(node, finding)
    if isinstance(got, (ProgramNotStarted, Answer)) and (
        met := login_limit_finding(node, program, *_refusal_errno_and_text(got))
    ):
        return Outcome.failed(node, met)
    evidence: tuple[str, ...] = ()
    path = ""
    if isinstance(got, ProgramNotStarted):
        if _is_run_folder_error(got.error):
            return Outcome.failed(node, run_folder_finding(node, got.error))
        kind, errno, path = got.error.get("type"), got.error.get("errno"), got.error.get("path") or ""
        says = f"the {program} program failed on {node}: {kind}: {got.error.get('text')}{f' ({path})' if path else ''}"
        evidence = (str(got.error),)
        way = "memory" if kind == "MemoryError" or errno == "ENOMEM" else "file" if errno and path else "bug"
    elif isinstance(got, TimeoutError) or (isinstance(got, Answer) and got.timed_out):
        says, way = f"the {program} program on {node} did not finish in time", "late"
    elif isinstance(got, Answer):
        says, way = f"the {program} program on {node} ended with code {got.code} and gave no answer", "crashed"
        evidence = tuple((got.stderr or got.stdout).strip().splitlines()[-6:])
    elif isinstance(got, Exception):
        # An error about one node must not hide what is known of the others.
        says = f"what the {program} program said of {node} could not be judged: {type(got).__name__}: {got}"
        where = traceback.extract_tb(got.__traceback__)[-1:]
        evidence = tuple(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in where)
        way = "stranger"
    else:
        raise TypeError(f"{program} on {node} gave {got!r}")
    finding = finding_for("tool-output-unknown", says, evidence, way=way, node=node, path=shell_word(path))
    return Outcome.unknown(node, finding)


def _refusal_errno_and_text(got: ProgramNotStarted | Answer) -> tuple[str, str]:
    """The name of the errno that a program met, or "", and the text that the program printed."""
    if isinstance(got, Answer):
        return "", "" if got.timed_out else got.stderr[-4000:]
    return got.error.get("errno") or "", f"{got.error.get('type')}: {got.error.get('text')}"


def _is_run_folder_error(error: Mapping[str, str]) -> bool:
    """Whether the error is about the run's folder, rather than about a system file that one of our programs reads."""
    path = error.get("path") or ""
    if not error.get("errno"):
        return False
    if not path:
        return error["errno"] in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "ESTALE")
    return not path.startswith(SYSTEM_FOLDERS)


def run_folder_finding(node: str, error: Mapping[str, str]) -> Finding:
    """Why the run's folder could not be made, trusted or written on a node."""
    path = error.get("path") or "the workdir"
    said = (f"{path}: {error.get('text')} ({error.get('errno') or error.get('type')})",)
    if error.get("type") == NOT_SAFE_ERROR:
        says = f"another user of {node} could change what is put into the workdir and run there: {path}: "
        return finding_for("workdir-not-safe", f"{says}{error.get('text')}", said, node=node, path=shell_word(path))
    if error.get("errno") in ("ENOSPC", "EDQUOT"):
        return finding_for(
            "disk-full", f"there is no room left for {path} on {node}", said, way="run-folder", path=shell_word(path)
        )
    return finding_for(
        "workdir-not-writable", f"{node} cannot write {path}: {error.get('text')}", said, way="run-folder"
    )


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit of the system, and how a program shows that it met the limit: by one of `errnos`, or by text that matches
    `words`. `says` is the finding's sentence, and may use {node} and {program}."""

    cause: str
    errnos: tuple[str, ...]
    words: re.Pattern[str]
    says: str


_LOGIN_LIMITS = (
    _Limit(
        "open-files-limit",
        ("EMFILE", "ENFILE"),
        re.compile(r"Too many open files"),
        "the {program} program on {node} may not open more files",
    ),
    _Limit(
        "process-limit",
        ("EAGAIN",),
        re.compile(r"can't start new thread|[Cc]annot fork|fork: retry|Resource temporarily unavailable"),
        "the login on {node} may not start more processes or threads: the {program} program could not go on",
    ),
    _Limit(
        "ephemeral-ports-exhausted",
        ("EADDRNOTAVAIL",),
        re.compile(r"Cannot assign requested address"),
        "{node} has no local port left for the {program} program",
    ),
    _Limit(
        "workdir-not-writable",
        ("EFBIG",),
        re.compile(r"File too large"),
        "the limit of file sizes for logins on {node} (ulimit -f) is too small for the {program} program",
    ),
)
"""Limits of a login that our programs may meet."""


def login_limit_finding(node: str, program: str, errno: str, words: str) -> Finding | None:
    """The finding for the limit that a program of ours met on a node, or None. `errno`: its name, or ""; `words`: what
    the program printed."""
    for limit in _LOGIN_LIMITS:
        said = limit.words.search(words)
        if errno in limit.errnos or (said and not errno):
            shown = next((line.strip() for line in words.splitlines() if limit.words.search(line)), words.strip())
            says = limit.says.format(node=node, program=program)
            seen = (f"{shown[:200]}{f' ({errno})' if errno else ''}",)
            return finding_for(limit.cause, says, seen, way="limit", node=node)
    return None
