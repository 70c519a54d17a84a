"""Windows, as far as Wine is Windows: runs batch files with the real rules of its cmd and says what programs got."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("dump.c")
WINE_FAILURES = (b"Application could not be started", b"wine: ", b"Inconsistency detected by ld.so")
"""How the words begin by which Wine says that it did not start cmd, or by which its loader fails as it ends."""


@dataclass(frozen=True, slots=True)
class Got:
    """What one program was started with."""

    folder: str
    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    stdout: str
    stderr: str


class Wine:
    """A prefix of its own, and its server, which `close` ends, also after a start that failed."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "prefix"
        self.dump = folder / "dump.exe"
        self.prefix.mkdir()
        self._sockets = tempfile.mkdtemp(prefix="wine-")  # the server leaves its folder behind
        subprocess.run(["x86_64-w64-mingw32-gcc", "-municode", "-O1", "-s", "-o", self.dump, SOURCE], check=True)
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": self._sockets,
            "WINEPREFIX": str(self.prefix),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree=;mshtml=;winemenubuilder.exe=",  # it asks about them in a window otherwise
        }
        # Ends the server when we do, or when we are killed: then the pipe ends as well.
        self._ends_with_us = subprocess.Popen(
            ["sh", "-c", "cat; exec wineserver -k"],
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt in the terminal is not for it
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        # A server that stays saves each cmd two seconds; it must not inherit the pipes that we read.
        for command in (["wineserver", "-p"], ["wine", "cmd", "/c", "exit"]):
            with Path(os.devnull).open("r+") as nothing:
                subprocess.run(
                    command, env=self._environ, stdin=nothing, stdout=nothing, stderr=nothing, timeout=180, check=True
                )

    def close(self) -> None:
        with self._ends_with_us as ending:
            assert ending.stdin is not None
            ending.stdin.close()
            ending.wait(60)
        shutil.rmtree(self._sockets, ignore_errors=True)

    @property
    def home(self) -> Path:
        """What %USERPROFILE% is in here."""
        (user,) = (one for one in (self.prefix / "drive_c/users").iterdir() if one.name != "Public")
        return user

    def program(self, path: Path) -> Path:
        """Put the program that dumps what it gets at this place."""
        shutil.copy(self.dump, path)
        return path

    def run(self, script: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        """`cmd /c SCRIPT` in the script's own folder, where programs dump what they got as well."""
        environ = {**self._environ, "DUMP_FOLDER": windows(script.parent), **(env or {})}
        for _ in range(3):
            done = subprocess.run(
                ["wine", "cmd", "/c", script.name, *arguments],
                cwd=script.parent,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=90,
                check=False,
            )
            # Once in some hundred times, on a busy machine, Wine itself fails, and not the script.
            if not (done.stdout + done.stderr).startswith(WINE_FAILURES):
                break
        return Ended(done.returncode, *(one.decode("utf-8", "replace") for one in (done.stdout, done.stderr)))


def windows(path: Path) -> str:
    """The path as Windows programs here write it."""
    return "Z:" + str(path).replace("/", "\\")


def got(folder: Path, program: str = "dump", rank: int | str = 0) -> Got:
    """What the program of this rank dumped."""
    data = (folder / f"{program}{rank}").read_bytes().decode()
    words, _, environment = data.partition("\0\0\1\0")
    here, *argv = words.split("\0")
    return Got(here, argv, dict(entry.partition("=")[::2] for entry in environment.split("\0") if entry[1:]))
