"""All nodes of a run at once: open them in parallel, keep them awake, fan work out, let them go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from runbook.model.commands import word
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.transport.local import LocalStream
from runbook.transport.remote import Message
from runbook.transport.session import SILENCE_S, Session
from runbook.transport.slurm import Allocations
from runbook.transport.stream import Stream

T = TypeVar("T")

BEAT_S = 1.0
HELLO_S = 15.0
OPEN_S = 75.0


class Site:
    """The open sessions, by node name, and what stood in the way of the others."""

    def __init__(self, run_id: str, *, forks: int = 64, keep: bool = False) -> None:
        self.run_id = run_id
        self.forks = forks
        self.keep = keep
        self.sessions: dict[str, Session] = {}
        self.failures: dict[str, Unreachable] = {}
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._ssh: object | None = None
        self._slurm = Allocations()
        threading.Thread(target=self._keep_awake, name="beats", daemon=True).start()

    def open(self, nodes: Iterable[Node]) -> None:
        """Reach every node; afterwards each is in `sessions` or in `failures`."""
        missing = [node for node in nodes if node.name not in self.sessions]
        steps = {node.name for node in missing if node.connection == "slurm"}
        for name, result in self.each(missing, self._open_one, timeout_s=OPEN_S).items():
            if isinstance(result, Unreachable):
                self.failures[name] = result
            elif isinstance(result, TimeoutError) and name in steps:
                self.failures[name] = Unreachable(
                    "slurm-unreachable",
                    f"no step came to run on {name} within {OPEN_S:g} s",
                    f"try `srun --overlap -N1 -w {word(name)} hostname` by hand; `scontrol ping`; more nodes at once with -f",
                )
            elif isinstance(result, TimeoutError):
                self.failures[name] = Unreachable(
                    "ssh-timeout",
                    f"logging in to {name} did not come to an end within {OPEN_S:g} s",
                    f"try `ssh {word(name)}` by hand; more nodes at once with -f, if there are very many",
                )
            elif isinstance(result, BaseException):
                raise result

    def reopen(self, node: Node) -> Session:
        """A node that was lost, once more; raises Unreachable where it still is."""
        with self._lock:
            session = self.sessions.get(node.name)
            if session is not None and session.lost is None:
                return session
            self.sessions.pop(node.name, None)
        self._open_one(node, again=True)
        return self.sessions[node.name]

    def _open_one(self, node: Node, *, again: bool = False) -> None:
        config = {"run_id": self.run_id, "node": node.name, "workdir": node.workdir, "keep": self.keep, "again": again}
        session = Session(node.name, self._stream(node), config, node.interpreter, HELLO_S)
        with self._lock:
            self.sessions[node.name] = session

    def _stream(self, node: Node) -> Stream:
        if node.connection == "local":
            return LocalStream(node.interpreter)
        if node.connection == "slurm":
            return self._slurm.connect(node)
        with self._lock:
            if self._ssh is None:
                # Fabric and its cryptography take a quarter of a second to import: only SSH runs pay for it.
                from runbook.transport.ssh import Logins

                self._ssh = Logins()
        return self._ssh.connect(node)  # type: ignore[attr-defined, no-any-return]

    def each(
        self, nodes: Iterable[Node], work: Callable[[Node], T], *, timeout_s: float
    ) -> Mapping[str, T | BaseException]:
        """Run `work` on every node in parallel: its result, what it raised, or TimeoutError, by node name."""
        listed = list(nodes)
        pool = ThreadPoolExecutor(max(1, min(self.forks, len(listed))), thread_name_prefix="fork")
        futures: dict[str, Future[T]] = {node.name: pool.submit(work, node) for node in listed}
        try:
            wait(futures.values(), timeout=timeout_s)
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
        last = time.monotonic()
        while not self._closing.wait(BEAT_S):
            with self._lock:
                sessions = list(self.sessions.values())
            slept, last = time.monotonic() - last, time.monotonic()
            if slept > SILENCE_S:
                for session in sessions:
                    session.give_up(
                        f"this machine slept for {slept:.0f} s, and {session.node} has ended the run by then"
                    )
            for session in sessions:
                session.beat()

    def close(self, *, timeout_s: float = 10.0) -> Mapping[str, Message | BaseException]:
        """Say goodbye to every node: what each stopped, swept and left behind, or why it could not be asked."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            sessions = dict(self.sessions)
            self.sessions.clear()
        pool = ThreadPoolExecutor(max(1, len(sessions)), thread_name_prefix="goodbye")
        futures = {name: pool.submit(session.goodbye) for name, session in sessions.items() if not session.lost}
        results: dict[str, Message | BaseException] = {
            name: session.lost for name, session in sessions.items() if session.lost
        }
        for name, future in futures.items():
            try:
                results[name] = future.result(max(0.1, deadline - time.monotonic()))
            except Exception as error:  # noqa: BLE001  what went wrong here is data for the report
                results[name] = error
        pool.shutdown(wait=False, cancel_futures=True)
        for session in sessions.values():
            session.let_go(max(0.0, deadline - time.monotonic()))
        self._closing.set()
        return results
