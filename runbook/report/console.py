"""The report that a person reads while the run goes on."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TextIO

from runbook.model.events import Event
from runbook.report.face_log import LogFace
from runbook.report.page import Line, RunPage


class Face(Protocol):
    """How a page meets its stream."""

    def show(self, event: Event, settled: list[Line]) -> None: ...
    def close(self, settled: list[Line]) -> None: ...


class Console:
    """A reader of events with two faces: a living one for a terminal, whole plain lines for everything else.

    What is not said is taken from the stream and the environment (see `wants`). A stream that breaks does not break
    the run: `broken` says so, and the console is silent from then on.
    """

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
        wanted_live, wanted_colour = wants(stream, environ)
        live = wanted_live if live is None else live
        colour = wanted_colour if colour is None else colour
        page_width = width
        if width is None and _is_terminal(stream):
            page_width = shutil.get_terminal_size().columns
        ascii_stream = not _carries_unicode(stream)
        self.broken = False
        self._stream = stream
        self._lock = threading.RLock()  # events may come from the threads of several nodes
        self._page = RunPage(verbose=verbose, width=page_width, only_ranks=only_ranks)
        self._face: Face
        if live:
            from runbook.report.face_live import LiveFace  # rich takes a while to load, and only a terminal needs it

            self._face = LiveFace(self._page, stream, colour=colour, ascii=ascii_stream, width=width)
        else:
            self._face = LogFace(self._page, stream, self._lock, colour=colour, ascii=ascii_stream, verbose=verbose)

    def __call__(self, event: Event) -> None:
        with self._lock:
            settled = self._page(event)
            if not self.broken:
                with self._bearing_a_broken_stream():
                    self._face.show(event, settled)

    def close(self) -> None:
        """Leave the terminal as it was; when no RunFinished came, say what is known. May be called twice."""
        with self._lock:
            settled = self._page.close()
            if not self.broken:
                with self._bearing_a_broken_stream():
                    self._face.close(settled)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _bearing_a_broken_stream(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # the reader of our pipe has gone
            self.broken = True
        except ValueError:  # so says a closed file
            if not self._stream.closed:
                raise
            self.broken = True


def wants(stream: TextIO, environ: Mapping[str, str] = os.environ) -> tuple[bool, bool]:
    """Whether the stream wants a living face, and colours.

    NO_COLOR (any text) beats FORCE_COLOR (any text but `0`) beats being a terminal. `TERM=dumb` and CI get plain lines.
    """
    terminal = _is_terminal(stream) and environ.get("TERM") != "dumb"
    forced = environ.get("FORCE_COLOR", "") not in ("", "0")
    colour = not environ.get("NO_COLOR") and (forced or terminal)
    return terminal and not environ.get("CI"), colour


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _carries_unicode(stream: TextIO) -> bool:
    encoding = getattr(stream, "encoding", None)
    return encoding is None or encoding.lower().replace("_", "-").startswith("utf")
