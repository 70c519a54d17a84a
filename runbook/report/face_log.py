"""The face for logs and pipes: whole lines, flushed, no control characters, and not too many of them."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TextIO

from runbook.model.events import Event, Progress, RunFinished, StageFinished, StageStarted
from runbook.model.units import seconds_text
from runbook.report.page import Line, RunPage
from runbook.report.paint import paint
from runbook.report.stage_status import progress_text, waiting

QUIET_S = 2.0  # at most one line of progress in this time, by the clock of the events
PATIENCE_S = 10.0  # after this silence the log says what runs, then after three times as much, and so on


class LogFace:
    def __init__(
        self, page: RunPage, stream: TextIO, lock: threading.RLock, *, colour: bool, ascii: bool, verbose: int
    ) -> None:
        self._page = page
        self._stream = stream
        self._lock = lock  # the timer prints too
        self._colour = colour
        self._ascii = ascii
        self._quiet_s = 0.0 if verbose else QUIET_S
        self._last_progress = (0.0, "")
        self._printed_at = time.monotonic()
        self._timer: threading.Timer | None = None

    def show(self, event: Event, settled: list[Line]) -> None:
        match event:
            case StageStarted():
                self._last_progress = (event.time, "")
                self._watch(time.monotonic(), PATIENCE_S)
            case StageFinished() | RunFinished():
                self._unwatch()
            case Progress() if not settled:
                settled = self._progress(event)
            case _:
                pass
        self._print(settled)

    def close(self, settled: list[Line]) -> None:
        self._unwatch()
        self._print(settled)

    def _progress(self, event: Progress) -> list[Line]:
        at, said = self._last_progress
        says = progress_text(event)
        if not says or says == said or event.time - at < self._quiet_s:
            return []
        self._last_progress = (event.time, says)
        elapsed = event.time - self._page.record.stage(event.stage, event.time).started.time
        return [self._page.running(event.stage, "...", seconds_text(elapsed), says, "dim")]

    def _watch(self, since: float, patience: float) -> None:
        """Name the stage that runs when the log has long been silent: a deadline may cut it off at any moment."""
        self._unwatch()
        timer = threading.Timer(max(0.01, self._printed_at + patience - time.monotonic()), lambda: still())
        timer.daemon = True

        def still() -> None:
            with self._lock, contextlib.suppress(OSError, ValueError):
                stage = self._page.record.open_stage
                if self._timer is not timer or stage is None:
                    return
                if time.monotonic() - self._printed_at < patience:
                    self._watch(since, patience)
                    return
                elapsed = seconds_text(time.monotonic() - since)
                says = f"still running, {waiting(stage)}"
                self._print([self._page.running(stage.name, "...", elapsed, says, "dim")])
                self._watch(since, patience * 3)

        self._timer = timer
        timer.start()

    def _unwatch(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None

    def _print(self, settled: list[Line]) -> None:
        if settled:
            self._printed_at = time.monotonic()
            painted = [paint(line, colour=self._colour, ascii=self._ascii) for line in settled]
            self._stream.write("\n".join(painted) + "\n")
            self._stream.flush()
