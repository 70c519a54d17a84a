"""What an `activate:` line needs to be there, as far as that can be read off it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Activation:
    """`conda`: the line is conda's to understand. `file`: it only reads this file (`~/x` lies in the home folder)."""

    conda: bool = False
    file: str | None = None

    @property
    def needs(self) -> str:
        """What to name where it is missing; empty if the line tells nothing."""
        return "conda" if self.conda else self.file or ""


@dataclass(frozen=True, slots=True)
class _ShellReader:
    """How one shell reads a file: the words before it, its names for the home folder, separators and endings."""

    start: re.Pattern[str]
    home: re.Pattern[str]
    separators: str
    endings: tuple[str, ...]


_READERS = {
    "sh": _ShellReader(re.compile(r"(?:\.|source)\s+"), re.compile(r'~/|("?)(?:\$HOME|\$\{HOME\})/'), "/", ("",)),
    "bat": _ShellReader(
        re.compile(r"(?:@?call\s+)?", re.IGNORECASE),
        re.compile(r'("?)%USERPROFILE%[\\/]', re.IGNORECASE),
        "/\\",
        (".bat", ".cmd"),
    ),
    "ps1": _ShellReader(
        re.compile(r"(?:[.&]\s*)?"),
        re.compile(r'~[\\/]|("?)(?:\$HOME|\$env:USERPROFILE)[\\/]', re.IGNORECASE),
        "/\\",
        (".ps1",),
    ),
}
_CONDA = re.compile(r"(?:@?call\s+)?conda\s+activate\b", re.IGNORECASE)
_QUOTED = re.compile(r"""(["'])([^"'$%`\\]*(?:\\[\w. -][^"'$%`\\]*)*)\1\Z""")
_BARE = re.compile(r"[\w./:@+=\\-]+\Z")


def read_activation(line: str | None, shell: str) -> Activation:
    """What `line` needs in `shell`. A line of any other make may need anything: nothing is said of it."""
    line = (line or "").strip()
    if _CONDA.match(line):
        return Activation(conda=True)
    reader = _READERS[shell]
    start = reader.start.match(line)
    rest = line[start.end() :] if start else ""
    home = reader.home.match(rest)
    if home:
        rest = (home[1] or "") + rest[home.end() :]
    quoted = _QUOTED.match(rest)
    path = quoted[2] if quoted else rest if _BARE.match(rest) else ""
    if not path or (shell == "sh" and "\\" in path):
        return Activation()
    if not home and not any(separator in path for separator in reader.separators):
        return Activation()  # found through PATH, if it is a file at all
    if not path.lower().endswith(reader.endings):
        return Activation()  # the shell would try several endings, or it is a program
    return Activation(file=f"~/{path}" if home else path)
