"""The sessions with all nodes of a run: opened in parallel, kept alive, used at once, and closed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from runbook.causes.catalogue import unreachable_for
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.transport.bootstrap import SilentPython
from runbook.transport.pause_detector import Awake, Pace, cpu_pressure_evidence, cpu_pressure_percent
from runbook.transport.remote_program import Message
from runbook.transport.session import BEAT_INTERVAL_S, SILENCE_TIMEOUT_S, Session
from runbook.transport.stream import LocalStream, Stream

if TYPE_CHECKING:
    from runbook.transport.kubernetes import Pods
    from runbook.transport.kubernetes_pods import Pod

T = TypeVar("T")

HELLO_TIMEOUT_S = 15.0
"""How long a supervisor may take to answer on a stream that is open."""

OPEN_TIMEOUT_S = 75.0
"""How long `Site.open` takes at most for all its nodes. The deadlines of one login (TCP, banner, key, channel, shell,
hello) end before this."""

MIN_STARVED_PAUSE_S, MIN_STARVED_PERCENT = 1.0, 50.0
"""A login that timed out is tried once more when this machine was held up for MIN_STARVED_PAUSE_S seconds meanwhile, or
when processes on it waited for a CPU for more than MIN_STARVED_PERCENT of the time."""

MAX_PARALLEL_RETRIES = 2
"""How many such logins are tried again at the same time."""

SLOW_MACHINE_CAUSES = ("ssh-timeout", "ssh-unreachable", "container-unreachable", "kubernetes-unreachable")
"""The causes that a login may end with only because this machine was too slow."""

REOPEN_TIMEOUT_S = 30.0
"""Seconds for connecting again to nodes that were lost, or that come as spares."""

CLOSE_TIMEOUT_S = 2.0
"""How long `Site.close` waits for an answer beyond its deadline."""

HOST_SUPERVISOR_SUFFIX = "+host"
"""The suffix of the node name under which a supervisor on a container's host runs; a node's own name has no `+`."""

MAX_PATIENCE_S = 30.0
"""The longest silence that nodes are asked to accept from a controller that is short of CPU."""


class Site:
    """The open sessions, by node name, and why the others could not be opened."""

    def __init__(
        self,
        run_id: str,
        *,
        forks: int = 64,
        keep: bool = False,
        inventory: str = "",
        looks: bool = False,
        again: bool = False,
    ) -> None:
        """`inventory` is the path of the inventory file, by which the server that agents dial is found. `forks` is how
        many nodes are worked on at once. `keep`: the run's folders stay on the nodes. `looks`: nothing new is to run on
        the nodes. `again`: this controller goes on with a run whose folders another controller left on the nodes."""
        self.run_id = run_id
        self.inventory = inventory
        self.looks = looks
        self.again = again
        self.forks = forks
        self.keep = keep
        self.sessions: dict[str, Session] = {}
        self.failures: dict[str, Unreachable] = {}
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._openers: dict[str, StreamOpener] = {}
        self._awake = Awake(BEAT_INTERVAL_S)
        self.pace = Pace()
        self.patience_s = SILENCE_TIMEOUT_S
        """How many seconds of silence nodes accept before they end what runs there; more while this machine is short
        of CPU."""
        threading.Thread(target=self._keep_awake, name="beats", daemon=True).start()

    def open(self, nodes: Iterable[Node], *, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        """Reach every node; afterwards each is in `sessions` or in `failures`.

        Logins begin as fast as this machine keeps up with them. A login that times out while this machine is too busy
        is tried once more, with few others beside it, before it counts as a failure.
        """
        deadline, begun = time.monotonic() + timeout_s, time.monotonic()
        nodes = list(nodes)
        if any(node.connection == "kubernetes" for node in nodes):
            self.pods.expect(nodes)
        failures = self._open([node for node in nodes if node.name not in self.sessions], deadline)
        late = {name: node for name, (node, failure) in failures.items() if _is_slow_machine_failure(failure)}
        starved = self._starved(begun) if late else ()
        if starved and time.monotonic() < deadline:
            again = self._open([*late.values()], deadline, at_once=MAX_PARALLEL_RETRIES)
            failures = {name: found for name, found in failures.items() if name not in late} | again
        for name, (_, failure) in failures.items():
            if starved and _is_slow_machine_failure(failure):
                failure = Unreachable(failure.cause, failure.says, failure.remedy, (*failure.evidence, *starved))
            self.failures[name] = failure

    def _starved(self, begun: float) -> tuple[str, ...]:
        """The evidence that this machine had too little CPU for logins since `begun`; empty when it had enough."""
        pause = self._awake.longest(begun)
        if pause.seconds > MIN_STARVED_PAUSE_S:
            return (f"{pause} meanwhile, which may be the only reason", *cpu_pressure_evidence())
        return cpu_pressure_evidence() if cpu_pressure_percent() > MIN_STARVED_PERCENT else ()

    def _open(
        self, nodes: list[Node], deadline: float, *, at_once: int | None = None
    ) -> dict[str, tuple[Node, Unreachable]]:
        """Open a session with each node; returns the nodes that failed and why, by name."""
        failures: dict[str, tuple[Node, Unreachable]] = {}
        left_s = max(0.1, deadline - time.monotonic())
        for node, result in zip(
            nodes, self.each(nodes, self._open_one, timeout_s=left_s, at_once=at_once).values(), strict=True
        ):
            if isinstance(result, Unreachable):
                failures[node.name] = node, result
            elif isinstance(result, TimeoutError):
                failures[node.name] = node, _connect_timeout_failure(node, left_s)
            elif isinstance(result, BaseException):
                raise result
        return failures

    def reopen(self, node: Node) -> Session:
        """Open a session with a lost node again; raises Unreachable when it still does not answer."""
        with self._lock:
            session = self.sessions.get(node.name)
            if session is not None and session.lost is None:
                return session
            self.sessions.pop(node.name, None)
        self._open_one(node, again=True)
        return self.sessions[node.name]

    def _open_one(self, node: Node, *, again: bool = False) -> None:
        """Open the session with one node, when it is the node's turn. Raises Unreachable."""
        with self.pace.turn():
            again = again or self.again
            session = self._enter(node, again) if node.entry else self._session(node, self._stream(node), again)
        with self._lock:
            self.sessions[node.name] = session

    def _enter(self, node: Node, again: bool) -> Session:
        """The session in the node's container, by way of a session on its host (`outside`). Raises Unreachable."""
        host = node.outside
        from runbook.transport.container import ContainerStream

        # The supervisor on the host has another name, since container and host may share a home and see each other's
        # processes.
        outside = self._session(host, self._stream(host), again, mark=f"{node.name}{HOST_SUPERVISOR_SUFFIX}")
        try:
            return self._session(node, ContainerStream(outside, node), again, outside=outside)
        except BaseException:
            with contextlib.suppress(Unreachable):
                outside.goodbye()
            raise

    def _session(
        self, node: Node, stream: Stream, again: bool, *, mark: str | None = None, outside: Session | None = None
    ) -> Session:
        """The session over a stream; `mark` is the supervisor's node name, if it is not the node's own."""
        config = {
            "run_id": self.run_id,
            "node": mark or node.name,
            "workdir": node.workdir,
            "keep": self.keep,
            "again": again,
        }
        python = node.interpreter
        return Session(
            node.name, stream, config, python, HELLO_TIMEOUT_S, self._awake, outside=outside, place=node.place
        )

    def _stream(self, node: Node) -> Stream:
        """The stream to a node's supervisor, by the node's `connection:`. Raises Unreachable."""
        if node.connection == "local":
            return LocalStream(node.interpreter)
        if node.connection == "agent":
            from runbook.transport.agent import AgentStream

            return AgentStream(node, self.inventory, looks=self.looks)
        return self._opener(node.connection).connect(node)

    def _opener(self, connection: str) -> StreamOpener:
        with self._lock:
            if connection not in self._openers:
                self._openers[connection] = _stream_opener(connection)
            return self._openers[connection]

    @property
    def pods(self) -> Pods:
        return cast("Pods", self._opener("kubernetes"))

    def pod(self, name: str) -> Pod | None:
        """The pod of this node, as it was when its session was opened; None when the node is not a pod."""
        return self.pods.entered(name) if "kubernetes" in self._openers else None

    def each(
        self,
        nodes: Iterable[Node],
        work: Callable[[Node], T],
        *,
        timeout_s: float,
        at_once: int | None = None,
        unless: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, T | BaseException]:
        """Run `work` for every node, `at_once` (else `forks`) of them at a time; stop waiting after `timeout_s` or when
        `unless()` is true. Returns for each node name the result, the exception that `work` raised, or TimeoutError."""
        listed = list(nodes)
        pool = ThreadPoolExecutor(max(1, min(at_once or self.forks, len(listed))), thread_name_prefix="fork")
        futures: dict[str, Future[T]] = {node.name: pool.submit(work, node) for node in listed}
        waiting, deadline = set(futures.values()), time.monotonic() + timeout_s
        try:
            while waiting and not unless() and (left_s := deadline - time.monotonic()) > 0:
                waiting = wait(waiting, timeout=min(0.5, left_s)).not_done
            results: dict[str, T | BaseException] = {}
            for name, future in futures.items():
                if not future.done():
                    results[name] = TimeoutError(f"{name}: no result within {timeout_s:g} s")
                    continue
                error = future.exception()
                results[name] = error if error is not None else future.result()
            return results
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _keep_awake(self) -> None:
        """The thread that sends every node a beat each BEAT_INTERVAL_S, and notices pauses of this machine."""
        while not self._closing.wait(BEAT_INTERVAL_S):
            late_s = self._awake.tick()
            lately_s = self._awake.longest(time.monotonic() - 2 * MAX_PATIENCE_S).seconds
            self.patience_s = min(MAX_PATIENCE_S, float(round(max(SILENCE_TIMEOUT_S, SILENCE_TIMEOUT_S * lately_s))))
            with self._lock:
                sessions = list(self.sessions.values())
            for session in sessions:
                with contextlib.suppress(RuntimeError):  # no more threads may be started; the next beat tries again
                    session.beat(patience_s=self.patience_s, in_time=late_s < BEAT_INTERVAL_S)

    def close(self, *, timeout_s: float = 10.0) -> Mapping[str, Message | BaseException]:
        """Say goodbye to every node. Returns for each node name what `Session.goodbye` gives, or the exception that
        says why the node could not be asked."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            sessions = dict(self.sessions)
            self.sessions.clear()
        results: dict[str, Message | BaseException] = {
            name: session.lost for name, session in sessions.items() if session.lost
        }
        # Every node is asked before we wait for any: programs on it may have a grace in which to end.
        pool = ThreadPoolExecutor(max(1, min(self.forks, len(sessions))), thread_name_prefix="goodbye")
        asked = {name: pool.submit(session.say_goodbye) for name, session in sessions.items() if not session.lost}
        wait(asked.values(), timeout=timeout_s / 2)

        def answer(one: Future[Callable[[float], Message]]) -> Message:
            return one.result(0.0)(max(0.1, deadline - time.monotonic()))

        answers = {name: pool.submit(answer, one) for name, one in asked.items()}
        for name, future in answers.items():
            try:
                results[name] = future.result(max(0.1, deadline + CLOSE_TIMEOUT_S - time.monotonic()))
            except Exception as error:  # noqa: BLE001  what went wrong here is data for the report
                results[name] = error
        pool.shutdown(wait=False, cancel_futures=True)
        for session in sessions.values():
            session.let_go(max(0.0, deadline - time.monotonic()))
        self._closing.set()
        return results


class StreamOpener(Protocol):
    """Opens the streams of one run to all nodes of one kind of connection."""

    def connect(self, node: Node) -> Stream:
        """A stream to the node's supervisor. Raises Unreachable with the cause."""


def _stream_opener(connection: str) -> StreamOpener:
    """The opener for this `connection:`. Only a run that needs its module imports it: Fabric and its cryptography alone
    take a quarter of a second."""
    if connection == "slurm":
        from runbook.transport.slurm import Allocations

        return Allocations()
    if connection == "kubernetes":
        from runbook.transport.kubernetes import Pods

        return Pods()
    from runbook.transport.ssh import Logins

    return Logins()


def _connect_timeout_failure(node: Node, seconds: float) -> Unreachable:
    """The failure of a connection that did not open in this many seconds."""
    cause, says = "ssh-timeout", f"logging in to {node.name} did not end"
    if node.connection == "slurm":
        cause, says = "slurm-unreachable", f"no step started on {node.name}"
    elif node.connection == "kubernetes":
        cause, says = "kubernetes-unreachable", f"no session started in {node.place}"
    elif node.connection == "agent":
        cause, says = "agent-lost", f"the agent of {node.name} opened no stream"
    says += f" within {seconds:.0f} s"
    return unreachable_for(cause, says, way="late", node=shell_word(node.name), pod=shell_word(node.pod or "POD"))


def _is_slow_machine_failure(failure: Unreachable) -> bool:
    """Whether the login may have failed only because this machine was too slow."""
    return failure.cause in SLOW_MACHINE_CAUSES or isinstance(failure, SilentPython)
