"""Writes the live form for a terminal: settled lines scroll by; the running stage is shown below, until its end.

This is the only module that loads rich.
"""

from __future__ import annotations

import time
from typing import TextIO

from rich.console import Console as Terminal
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from runbook.model.events import Event, Progress, RunFinished, StageFinished, StageStarted
from runbook.model.units import seconds_text
from runbook.report.run_text import RunPage, StyledLine, paint_line, progress_text, waiting_text


class LiveFace:
    """Writes settled lines to a terminal, and below them the changing lines of the running stage."""

    def __init__(self, page: RunPage, stream: TextIO, *, colour: bool, ascii: bool, width: int | None) -> None:
        self._page = page
        self._colour = colour
        self._ascii = ascii
        self._terminal = Terminal(
            file=stream,
            force_terminal=True,
            color_system="standard" if colour else None,
            no_color=not colour,
            width=width,
            markup=False,
            highlight=False,
            emoji=False,
        )
        self._spinner = Spinner("line" if ascii else "dots")
        self._live: Live | None = None
        self._began = 0.0
        self._said = ""

    def show(self, event: Event, settled: list[StyledLine]) -> None:
        match event:
            case StageStarted():
                self._wake()
            case StageFinished() | RunFinished():
                self._rest()
            case Progress() if not settled:
                self._said = progress_text(event)
            case _:
                pass
        self._print(settled)

    def close(self, settled: list[StyledLine]) -> None:
        self._rest()
        self._print(settled)

    def _wake(self) -> None:
        self._rest()
        self._began, self._said = time.monotonic(), ""
        self._live = Live(
            console=self._terminal,
            get_renderable=self._now,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def _rest(self) -> None:
        live, self._live = self._live, None
        if live:
            live.stop()

    def _print(self, settled: list[StyledLine]) -> None:
        for line in settled:
            # soft_wrap: the terminal breaks what is too long, so that a copied command is whole
            self._terminal.print(Text.from_ansi(self._paint(line)), soft_wrap=True)

    def _now(self) -> Text:
        """The changing lines: what runs, for how long, which nodes have answered, and the last message."""
        stage = self._page.record.open_stage
        if stage is None:
            return Text()
        elapsed = seconds_text(time.monotonic() - self._began)
        lines = [
            self._page.running(stage.name, str(self._spinner.render(time.monotonic())), elapsed, waiting_text(stage))
        ]
        if self._said:
            lines.append(self._page.running("", "", "", self._said, "dim"))
        painted = "\n".join(self._paint(line) for line in lines)
        return Text.from_ansi(painted, no_wrap=True, overflow="crop" if self._ascii else "ellipsis")

    def _paint(self, line: StyledLine) -> str:
        return paint_line(line, colour=self._colour, ascii=self._ascii)
