"""One command of ours, in this process, against nodes of a recording of which one may say what it likes."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from runbook.cli.main import main
from runbook.model.inventory import Node
from runbook.transport.node_sessions import Site
from runbook.transport.stream import Stream

from .recorded_node import Change, RecordedNode, Recording, unchanged

MakeNode = Callable[[Recording, str], Stream]


@dataclass(frozen=True)
class Done:
    """How it ended. `seconds` and `cpu_s` of the controller; `crashes` are exceptions that nobody caught, in any thread."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    cpu_s: float
    run_dir: Path
    crashes: tuple[str, ...]
    written: tuple[str, ...]  # files outside the run folder that were made or changed

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "result.json").read_text())
        return found

    def outcomes(self, node: str) -> list[dict[str, Any]]:
        return [o for stage in self.document["stages"] for o in stage["outcomes"] if o["node"] == node]

    def complaint(self, codes: Collection[int] = (0, 1, 3)) -> str | None:
        """What must not happen whatever a node says; None where it did not."""
        if self.code not in codes:
            return f"it ended with {self.code}"
        if self.crashes:
            return f"exceptions that nobody caught: {self.crashes}"
        if "Traceback" in self.stdout + self.stderr or (self.run_dir / "crash.txt").exists():
            return "it crashed"
        if self.written:
            return f"it wrote {self.written}"
        return None

    def __str__(self) -> str:
        crash = self.run_dir / "crash.txt"
        told = crash.read_text() if crash.exists() else ""
        return f"exit {self.code} after {self.seconds:.1f} s ({self.cpu_s:.1f} s of CPU)\n{self.stdout}\n{self.stderr}\n{told}"


def changing(node: str, change: Change) -> MakeNode:
    """Nodes as recorded, but this one, of which `change` alters what it says."""
    return lambda recording, name: RecordedNode(recording.said[name], change if name == node else unchanged)


def impatient(playbook: str) -> str:
    """Recorded nodes answer at once or not at all: that nothing moves is known sooner than of real ones."""
    stall = "stall: 500ms"
    return playbook.replace("with: {", f"with: {{{stall}, ").replace("with:\n      ", f"with:\n      {stall}\n      ")


def attack(recording: Recording, make: MakeNode, folder: Path, printed: io.StringIO | None = None) -> Done:
    """Run the command of the recording against the nodes that `make` makes. Into `printed` goes what it prints, at once."""
    home, run_dir = folder / "home", folder / "run"
    home.mkdir(parents=True)
    run_dir.mkdir()
    paths = {"inventory": folder / "inventory.yml", "playbook": folder / "playbook.yml", "run": run_dir}
    paths["inventory"].write_text(recording.inventory)
    paths["playbook"].write_text(impatient(recording.playbook))
    words = [word.format(**paths) for word in recording.command]
    before = _files(folder)
    crashes: list[str] = []

    def stream(_site: Site, node: Node) -> Stream:
        return make(recording, node.name)

    out, err = printed or io.StringIO(), io.StringIO()
    used, begun = _cpu(), time.monotonic()
    with (
        mock.patch.object(Site, "_stream", stream),
        mock.patch.object(threading, "excepthook", lambda args: crashes.append(f"{args.exc_type}: {args.exc_value}")),
        mock.patch.dict("os.environ", {"HOME": str(home)}),
        contextlib.chdir(home) if hasattr(contextlib, "chdir") else contextlib.nullcontext(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _signals_kept(),
    ):
        code = main(words)
        for (
            thread
        ) in threading.enumerate():  # the program would end here; its readers must not write into the next test
            if thread.name.startswith("fetch "):
                thread.join(60)
    written = tuple(
        str(path.relative_to(folder))
        for path, state in _files(folder).items()
        if before.get(path) != state and run_dir not in path.parents and home / ".runbook" not in path.parents
    )
    return Done(
        code, out.getvalue(), err.getvalue(), time.monotonic() - begun, _cpu() - used, run_dir, tuple(crashes), written
    )


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*") if not path.is_dir()}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Commands set handlers for Ctrl-C, which are not to outlive them here."""
    import signal

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
