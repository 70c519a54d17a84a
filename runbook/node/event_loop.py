"""An event loop: many conversations in one thread, as generators, on a clock that stands still while the process does
not run. Silence is evidence only while this process could have noticed an answer. A process without a CPU sees silence
while answers wait in its sockets, so its clock advances by at most LOOK_S between two looks at the sockets, however
long the process did not run. The lost time is recorded, for peers that waited for it. Python 3.8, standard library.

A generator yields (sockets, events, seconds). It is resumed with the sockets that are ready, or with none once that
many seconds have passed on the loop's clock (None: it waits for ever).
"""

from __future__ import annotations

import heapq
import selectors
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from runbook.transport.node_answers import AwakeFacts

    Conversation = Generator[Any, Any, Any]
    """A generator that yields what it waits for, is sent the ready sockets, and returns its result."""

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

LOOK_S = 0.05  # the most seconds by which the clock advances between two looks at the sockets
IDLE_TIMEOUT_S = 0.25  # seconds to wait for events if no task is due


class EventLoop:
    """Runs tasks in one thread. `clock`: the seconds for which this process could have noticed events."""

    def __init__(self) -> None:
        self.clock = 0.0
        self._selector = selectors.DefaultSelector()
        self._due: list[
            tuple[float, int, Task]
        ] = []  # (time on our clock, number, task); outdated if the task has another number by now
        self._fresh: list[Task] = []
        self._numbers = 0
        self._looked = self._since = time.monotonic()
        self._late = self._latest = 0.0

    def start(self, generator: Conversation, done: Callable[[Any], object] | None = None) -> Task:
        """Adds a task, which begins with the next turn; `done` is called with its result."""
        task = Task(generator, done)
        self._fresh.append(task)
        return task

    def cancel(self, task: Task) -> None:
        """Ends a task; its `done` is not called."""
        self._forget(task)
        task.number = None
        task.generator.close()

    def turn(self) -> None:
        """Waits for the first events, and resumes their tasks."""
        while self._fresh:
            self._go_on(self._fresh.pop(0), [])
        meant = max(0.0, min(LOOK_S, self._due[0][0] - self.clock)) if self._due else IDLE_TIMEOUT_S
        ready = self._selector.select(meant)
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        self.clock += min(passed, LOOK_S)
        late = passed - meant
        if late > LOOK_S:
            self._late += late
            self._latest = max(self._latest, late)
        tasks: dict[Task, list[Any]] = {}
        for key, _ in ready:
            tasks.setdefault(key.data, []).append(key.fileobj)
        for task, sockets in tasks.items():
            self._go_on(task, sockets)
        due: list[tuple[int, Task]] = []
        while self._due and self._due[0][0] <= self.clock:
            due.append(heapq.heappop(self._due)[1:])
        for number, task in due:  # collected before: a task may be due again at once, by a rounding error, for ever
            if task.number == number:
                self._go_on(task, [])

    def report(self) -> AwakeFacts:
        """How awake the loop was since the last report: all seconds, the seconds for which it should have run and did
        not, and the longest such time."""
        now = time.monotonic()
        told: AwakeFacts = {
            "seconds": round(now - self._since, 3),
            "late_s": round(self._late, 3),
            "latest_s": round(self._latest, 3),
            "pressure": cpu_pressure(),
        }
        self._since, self._late, self._latest = now, 0.0, 0.0
        return told

    def _go_on(self, task: Task, sockets: list[Any]) -> None:
        if task.number is None:
            return
        self._forget(task)
        self._numbers += 1
        task.number = self._numbers
        try:
            task.sockets, events, seconds = task.generator.send(sockets if task.begun else None)
        except StopIteration as end:
            if task.done:
                task.done(end.value)
            return
        task.begun = True
        for sock in task.sockets:
            self._selector.register(sock, events, task)
        if seconds is not None:
            heapq.heappush(self._due, (self.clock + seconds, task.number, task))

    def _forget(self, task: Task) -> None:
        for sock in task.sockets:
            self._selector.unregister(sock)
        task.sockets = ()


class Task:
    """A conversation in the loop, and what it waits for now."""

    def __init__(self, generator: Conversation, done: Callable[[Any], object] | None) -> None:
        self.generator, self.done = generator, done
        self.sockets: Any = ()
        self.number: int | None = 0  # changes each time the task is resumed; None: the task was cancelled
        self.begun = False


def wait_in_loop(seconds: float) -> Conversation:
    yield (), READ, seconds


def cpu_pressure() -> float | None:
    """The percentage of the last 10 s in which a process on this machine waited for a CPU; None if the kernel does not
    say."""
    try:
        with open("/proc/pressure/cpu") as file:
            return float(file.readline().partition("avg10=")[2].split()[0])
    except (OSError, ValueError, IndexError):
        return None
