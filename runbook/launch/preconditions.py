"""What does a launch script check before it starts anything, so that it can stop with an exit code and a sentence of
its own?"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

STOP_EXIT_CODES: Mapping[str, int] = {
    "workdir-missing": 90,
    "activation-failed": 91,
    "program-missing": 92,
    "environment-missing": 93,
    "address-unresolved": 94,
    "address-loopback": 95,
    # 96 is the exit code of the controller's bootstrap when it finds no Python on a node.
    "port-taken": 97,
    # 98 was a missing Python for the checks: the script now checks by other means, or says that it could not.
    "secrets-missing": 99,
}
"""The exit code of each stop of a launch script, by its event."""


@dataclass(frozen=True, slots=True)
class Guards:
    """What the script checks before it starts anything, as the inventory writes it.

    `python`: the program that resolves the address and binds the port for the check; the job need not use it. `port`:
    None if rank 0 runs on another node.
    """

    python: str
    address: str
    port: int | None
    several_nodes: bool

    @property
    def by_name(self) -> bool:
        """Whether the address is a name, which has to be resolved."""
        return self._ip is None

    @property
    def astray(self) -> bool:
        """Whether the address is a loopback IP although several nodes have to meet there."""
        return self.several_nodes and self._ip is not None and self._ip.is_loopback

    @property
    def _ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.address)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Activation:
    """What an `activate:` line does. `conda`: it calls `conda activate`. `file`: it only reads this file (`~/x` lies in
    the home folder). `modules`: it loads environment modules, of whichever kind."""

    conda: bool = False
    file: str | None = None
    modules: bool = False

    @property
    def needs(self) -> str:
        """The name of what the line needs, for the message if that is missing; empty if the line does not show it."""
        return "conda" if self.conda else self.file or ""


@dataclass(frozen=True, slots=True)
class _ShellReader:
    """How a line of one shell reads a file: `start` matches the words before the path, `home` the shell's names for the
    home folder; `separators` and `endings` are those of paths."""

    start: re.Pattern[str]
    home: re.Pattern[str]
    separators: str
    endings: tuple[str, ...]


_SHELL_READERS = {
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
"""By shell, how a line reads a file."""
_CONDA_ACTIVATE_LINE = re.compile(r"(?:@?call\s+)?conda\s+activate\b", re.IGNORECASE)
"""A line that calls `conda activate`."""
_MODULE_LOAD_LINE = re.compile(r"(?:\A|[;&|({])\s*(?:module|ml)\s")
"""A line that loads environment modules."""
_QUOTED_PATH = re.compile(r"""(["'])([^"'$%`\\]*(?:\\[\w. -][^"'$%`\\]*)*)\1\Z""")
"""A path in quotes, without anything that the shell would expand."""
_UNQUOTED_PATH = re.compile(r"[\w./:@+=\\-]+\Z")
"""A path without quotes, without anything that the shell would expand."""


def read_activation(line: str | None, shell: str) -> Activation:
    """What `line` does in `shell`. A line of another form may do anything: its Activation is empty."""
    line = (line or "").strip()
    if _CONDA_ACTIVATE_LINE.match(line):
        return Activation(conda=True, modules=_MODULE_LOAD_LINE.search(line) is not None)
    if shell == "sh" and _MODULE_LOAD_LINE.search(line):
        return Activation(modules=True)
    reader = _SHELL_READERS[shell]
    start = reader.start.match(line)
    rest = line[start.end() :] if start else ""
    home = reader.home.match(rest)
    if home:
        rest = (home[1] or "") + rest[home.end() :]
    quoted = _QUOTED_PATH.match(rest)
    path = quoted[2] if quoted else rest if _UNQUOTED_PATH.match(rest) else ""
    if not path or (shell == "sh" and "\\" in path):
        return Activation()
    if not home and not any(separator in path for separator in reader.separators):
        return Activation()  # without a folder, the word is looked up through PATH, if it is a file at all
    if not path.lower().endswith(reader.endings):
        return Activation()  # the shell would try several endings, or the file is a program
    return Activation(file=f"~/{path}" if home else path)


# RENDEZVOUS_PROBE as a program of several lines:
#
#     try:
#         found = [ip_address(entry[4][0]) for entry in getaddrinfo(NAME, None)]   # without the zone after `%`
#         if SEVERAL and all(address.is_loopback for address in found):
#             exit with the code of address-loopback
#         bind a socket to PORT, unless it is 0
#     except (socket.gaierror, UnicodeError): print it, exit with the code of address-unresolved
#     except (OSError, OverflowError): print it, exit with the code of port-taken
RENDEZVOUS_PROBE = (
    "import ipaddress, ntpath, os, socket, sys; "
    "name, port, several = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]); "
    f"unresolved, loopback, taken = {STOP_EXIT_CODES['address-unresolved']}, "
    f"{STOP_EXIT_CODES['address-loopback']}, {STOP_EXIT_CODES['port-taken']}; "
    # One line cannot hold `try`, so exceptions come here; only known ones have an exit code of their own.
    "sys.excepthook = lambda kind, error, trace: (sys.stderr.write(str(error) + chr(10)), sys.stderr.flush(), "
    "os._exit(unresolved if issubclass(kind, (socket.gaierror, UnicodeError)) else "
    "taken if issubclass(kind, (OSError, OverflowError)) else 1)); "
    "found = [ipaddress.ip_address(entry[4][0].partition(chr(37))[0]) for entry in socket.getaddrinfo(name, None)]; "
    "several and all(address.is_loopback for address in found) and sys.exit(loopback); "
    "door = socket.socket(); "
    # On Windows this option would let two programs share a port; elsewhere it ignores closing ones of the last job.
    "os.path is ntpath or door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
    "port and door.bind((str(), port))"
)
"""A program for Python 3.6 and later, in one line, without any character that is special in a shell. Its arguments are
NAME, PORT (or 0) and SEVERAL (1 or 0).

It exits with 0, or with the code of address-unresolved, address-loopback or port-taken; any other code is no answer.
"""
