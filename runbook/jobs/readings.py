"""The counters of all nodes of an attempt: before it, every half a minute, and after it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from runbook.checks.bandwidth.wires import interfaces_of
from runbook.checks.context import Facts, no_answer
from runbook.jobs.counters import not_read, rises
from runbook.jobs.kept import KeptProcesses
from runbook.model.inventory import Node
from runbook.model.verdict import Finding

EVERY_S = 30.0
ANSWER_S = 12.0
GPU_S = 5.0
"""How long nvidia-smi may take. It is not asked again on a node where it took longer: each one that hangs may stay."""

LEAVE_S = 1.0


class Readings:
    """One thread asks all nodes, for as long as the `with` block lasts, and once at its beginning and its end. What rose is told
    when it is seen, once for each counter. `tell` gets the node and what was found there."""

    def __init__(
        self, kept: KeptProcesses, tell: Callable[[str, Finding], None], unread: Callable[[str, str], None]
    ) -> None:
        """`unread` is told of a node what was not read, once."""
        self.then: Callable[[], None] = lambda: None
        """What is done after each reading but the first and the last."""
        self._kept = kept
        self._tell = tell
        self._unread = unread
        self._lock = threading.Lock()
        self.first: dict[str, Facts] = {}
        self.before: dict[str, Facts] = {}
        self.last: dict[str, Facts] = {}
        self.rose: dict[str, list[str]] = {}
        """By node: the first reading, the last but one, the last, and what rose in sentences."""
        self._said: set[str] = set()
        self._without_gpus: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="counters", daemon=True)

    def __enter__(self) -> Readings:
        self.read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(LEAVE_S)
        if not self._kept.at.hurry.is_set():
            self.read()

    def _read_on(self) -> None:
        while not self._ending.wait(EVERY_S):
            self.read()
            self.then()

    def read(self) -> None:
        """Ask every node that is reached."""
        nodes = [self._kept.at.inventory.node(name) for name in self._kept.live_nodes()]
        for name, answer in self._kept.at.run.site.each(nodes, self._ask, timeout_s=ANSWER_S).items():
            with self._lock:
                if isinstance(answer, BaseException):
                    self._say_unread(name, no_answer(name, "counters", answer).findings[0].says)
                else:
                    self._take(name, answer)

    def _gpus(self, name: str) -> list[int]:
        """Those that are asked for on a node."""
        mine = sorted({gpu for member in self._kept.on(name) for gpu in member.place.gpus})
        return [] if name in self._without_gpus else mine

    def _pid(self, name: str) -> int | None:
        """Of a process of the job there; None before it has any."""
        pids = [member.journal.get("pid") for member in self._kept.on(name) if not member.over]
        return next((pid for pid in pids if pid), None)

    def _ask(self, node: Node) -> Facts:
        at = self._kept.at
        order = {
            "interfaces": interfaces_of(at, node),
            "gpus": self._gpus(node.name),
            "deadline_s": GPU_S,
            "pid": self._pid(node.name),
        }
        return at.session(node).call("counters", order, timeout_s=ANSWER_S)

    def _take(self, name: str, now: Facts) -> None:
        for missing in not_read(now, gpus=bool(self._gpus(name))):
            self._say_unread(name, missing)
        if (now["gpus"] or {}).get("timed_out"):
            self._without_gpus.add(name)
        for then in [facts for facts in (self.last.get(name), self.first.get(name)) if facts is not None]:
            for key, finding in rises(name, then, now):
                if key not in self._said:
                    self._said.add(key)
                    self.rose.setdefault(name, []).append(finding.says)
                    self._tell(name, finding)
        self.first.setdefault(name, now)
        self.before[name] = self.last.get(name, now)
        self.last[name] = now

    def _say_unread(self, name: str, what: str) -> None:
        if f"{name} {what}" not in self._said:
            self._said.add(f"{name} {what}")
            self._unread(name, what)
