"""What tests leave behind: temporary files, processes, labs. Each worker of pytest-xdist looks after its own alone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import left_behind

ENDS_S = 20.0
"""How long a process that has been told to end may take."""


class Leftovers:
    """A folder for the temporary files of this worker's tests, and of whatever they start; and after whom what lies there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._after: dict[str, str] = {}

    def look(self, test: str) -> None:
        """Remember what is new after this test: a fixture of its module may still need it."""
        for path in self.folder.iterdir():
            self._after.setdefault(path.name, test)

    def files(self) -> list[str]:
        names = sorted(path.name for path in self.folder.iterdir())
        return [f"{name}, since {self._after.get(name, 'the end')}" for name in names]

    def processes(self) -> list[str]:
        """Those that were started with this folder in their environment, as whatever a test starts is."""
        mark = b"\0TMPDIR=" + os.fsencode(self.folder) + b"\0"
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in b"\0" + (process / "environ").read_bytes() and int(process.name) != os.getpid():
                    found.append(
                        f"{process.name}: {(process / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}"
                    )
            except OSError:
                continue  # it has ended, or is another user's
        return found

    def all(self) -> list[str]:
        deadline = time.monotonic() + ENDS_S
        while (running := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [
            *(f"process {one}" for one in running),
            *(f"temporary file {one}" for one in self.files()),
            *(f"of the lab: {one}" for one in left_behind()),
        ]


@contextmanager
def own_temporary_folder() -> Iterator[Leftovers]:
    """For this process and its children, until the block ends; then it is gone, and an AssertionError names what was in it."""
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    folder = Path(tempfile.mkdtemp(prefix="rb-"))  # short: the path of a socket has room for 107 bytes
    folder.chmod(0o1777)  # as /tmp is: some tests become other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    leftovers = Leftovers(folder)
    try:
        yield leftovers
        left = leftovers.all()
    finally:
        tempfile.tempdir = before[1]
        if before[0] is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before[0]
        shutil.rmtree(folder, ignore_errors=True)
    assert not left, "the tests have left behind:\n  " + "\n  ".join(left)
