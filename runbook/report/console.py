"""Writes the report that a person reads while the run goes on: live on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Collection, Mapping
from typing import Protocol, TextIO

from runbook.model.events import Event, Progress, RunFinished, StageFinished, StageStarted
from runbook.model.units import seconds_text
from runbook.report.run_text import RunPage, StyledLine, paint_line, progress_text, waiting_text


class Face(Protocol):
    """Writes the page to its stream; `settled` are lines of the page that will not change."""

    def show(self, event: Event, settled: list[StyledLine]) -> None: ...
    def close(self, settled: list[StyledLine]) -> None: ...


class Console:
    """A reader of events with two forms: a live one for a terminal, whole plain lines for everything else. Options left
    out come from the stream and the environment (see `wants`). The stream is the `verbatim` of an `OutputStream`, so
    that writing to it raises no error."""

    def __init__(
        self,
        stream: TextIO,
        *,
        live: bool | None = None,
        colour: bool | None = None,
        verbose: int = 0,
        width: int | None = None,
        only_ranks: Collection[int] = frozenset(),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        wanted_live, wanted_colour = live_and_colour(stream, environ)
        live = wanted_live if live is None else live
        colour = wanted_colour if colour is None else colour
        page_width = width
        if width is None and stream.isatty():
            page_width = shutil.get_terminal_size().columns
        ascii_stream = not _carries_unicode(stream)
        self._lock = threading.RLock()  # events may come from the threads of several nodes
        self._page = RunPage(verbose=verbose, width=page_width, only_ranks=only_ranks)
        self._face: Face
        if live:
            from runbook.report.console_live import LiveFace  # rich takes a while to load, and only a terminal needs it

            self._face = LiveFace(self._page, stream, colour=colour, ascii=ascii_stream, width=width)
        else:
            self._face = LogFace(self._page, stream, self._lock, colour=colour, ascii=ascii_stream, verbose=verbose)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._face.show(event, self._page(event))

    def close(self) -> None:
        """Leaves the terminal as it was; if no RunFinished came, says what is known. May be called twice."""
        with self._lock:
            self._face.close(self._page.close())

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def live_and_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> tuple[bool, bool]:
    """Whether the stream gets the live form, and colours.

    NO_COLOR (any text) beats FORCE_COLOR (any text but `0`) beats being a terminal. `TERM=dumb` and CI get plain lines.
    """
    terminal = stream.isatty() and environ.get("TERM") != "dumb"
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    colour = not environ.get("NO_COLOR") and (forced or terminal)
    return terminal and not environ.get("CI"), colour


def _carries_unicode(stream: TextIO) -> bool:
    encoding = getattr(stream, "encoding", None)
    return encoding is None or encoding.lower().replace("_", "-").startswith("utf")


PROGRESS_LINE_INTERVAL_S = 2.0  # at most one line of progress in this time, by the clock of the events
SILENCE_TIMEOUT_S = 10.0  # after this silence the log says what runs, then after three times as much, and so on


class LogFace:
    """Writes plain lines: settled ones, some of the progress, and after a long silence the stage that runs."""

    def __init__(
        self, page: RunPage, stream: TextIO, lock: threading.RLock, *, colour: bool, ascii: bool, verbose: int
    ) -> None:
        self._page = page
        self._stream = stream
        self._lock = lock  # the timer prints too
        self._colour = colour
        self._ascii = ascii
        self._quiet_s = 0.0 if verbose else PROGRESS_LINE_INTERVAL_S
        self._last_progress = (0.0, "")
        self._printed_at = time.monotonic()
        self._timer: threading.Timer | None = None

    def show(self, event: Event, settled: list[StyledLine]) -> None:
        match event:
            case StageStarted():
                self._last_progress = (event.time, "")
                self._watch(time.monotonic(), SILENCE_TIMEOUT_S)
            case StageFinished() | RunFinished():
                self._unwatch()
            case Progress() if not settled:
                settled = self._progress(event)
            case _:
                pass
        self._print(settled)

    def close(self, settled: list[StyledLine]) -> None:
        self._unwatch()
        self._print(settled)

    def _progress(self, event: Progress) -> list[StyledLine]:
        at, said = self._last_progress
        says = progress_text(event)
        if not says or says == said or event.time - at < self._quiet_s:
            return []
        self._last_progress = (event.time, says)
        elapsed = event.time - self._page.record.stage(event.stage, event.time).started.time
        return [self._page.running(event.stage, "...", seconds_text(elapsed), says, "dim")]

    def _watch(self, since: float, patience: float) -> None:
        """Starts a timer that names the running stage once the log has been silent for `patience` seconds: a deadline
        may cut the log off at any moment. `since` is when the stage began."""
        self._unwatch()
        timer = threading.Timer(max(0.01, self._printed_at + patience - time.monotonic()), lambda: still())
        timer.daemon = True

        def still() -> None:
            with self._lock:
                stage = self._page.record.open_stage
                if self._timer is not timer or stage is None:
                    return
                if time.monotonic() - self._printed_at < patience:
                    self._watch(since, patience)
                    return
                elapsed = seconds_text(time.monotonic() - since)
                says = f"still running, {waiting_text(stage)}"
                self._print([self._page.running(stage.name, "...", elapsed, says, "dim")])
                self._watch(since, patience * 3)

        self._timer = timer
        timer.start()

    def _unwatch(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None

    def _print(self, settled: list[StyledLine]) -> None:
        if settled:
            self._printed_at = time.monotonic()
            painted = [paint_line(line, colour=self._colour, ascii=self._ascii) for line in settled]
            self._stream.write("\n".join(painted) + "\n")
            self._stream.flush()
