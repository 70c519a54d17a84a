"""The one command that turns a login shell into our supervisor, and why that may fail.

The command is plain ASCII without single quotes inside, backslash sequences that fish would read, line breaks or `!`,
so that sh, bash, dash, zsh, fish, csh and tcsh all pass it on untouched to `/bin/sh`. The user's only word in it is the
interpreter's name, and only when that is made of harmless characters; any other name comes as the first line of
stdin, which `read` takes byte by byte. The supervisor's source follows on stdin, its length first; it has to arrive
within SOURCE_DEADLINE_S, so that nothing waits for ever on a node whose network died in that moment.

A `.bashrc` may `exec` another program, which then reads our stdin. So the first line on stdin is one that every shell
understands: `exit`, with the length of the source behind a `#`.
"""

from __future__ import annotations

import functools
import re
import zlib

from runbook.causes.catalogue import remedy_from_page, unreachable_for
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.process_end import ProcessEnd
from runbook.transport import node_programs

SUPERVISOR_MARK = b"\x1erunbook-supervisor "
"""The bytes that begin the supervisor's first line; output of a `.bashrc` or a banner before them is skipped."""

SHELL_MARK = b"\x1erunbook-shell"
"""The bytes that our shell prints before it starts a Python: after them no startup file can delay the supervisor."""

SOURCE_DEADLINE_S = 20
"""Seconds within which the supervisor's source has to arrive on stdin; after them SIGALRM ends the waiting Python."""

# Exit codes that the command reports of the interpreters that it tried.
EXIT_NO_NULL = 95
"""Nothing can be written to /dev/null."""

EXIT_TOO_OLD = 97
"""The interpreter is older than Python 3.8."""

EXIT_STDIN_EATEN = 98
"""Another program has read from our stdin: its first line is not the one that we sent."""

EXIT_NOT_FOUND = 127
"""There is no such command."""

EXIT_NOT_STARTABLE = 126
"""The interpreter cannot be started. An interpreter that exists and ends with 127, for want of a library or of its own
interpreter, is reported with this code as well."""

_PYTHON_SOURCE = (
    f"import sys; sys.exit({EXIT_TOO_OLD}) if sys.version_info < (3, 8) else None; "
    "sys.path[:] = [p for p in sys.path if p]; "
    "import signal, zlib; "
    f"hasattr(signal, 'alarm') and signal.alarm({SOURCE_DEADLINE_S}); "
    "a, b, n = sys.stdin.buffer.readline().partition(b'exit #'); "
    f"sys.exit({EXIT_STDIN_EATEN}) if a or not b else None; "
    "n = int(n); "
    "s = sys.stdin.buffer.read(n); "
    "hasattr(signal, 'alarm') and signal.alarm(0); "
    "exec(compile(zlib.decompress(s), 'runbook-supervisor', 'exec'))"
).replace("'", '\\"')

_SHELL_SCRIPT = (
    'r=; printf "\\036runbook-shell\\n"; '
    'for c in "$p" python3 python /usr/libexec/platform-python; do '
    'case $c in "~/"*) c=$HOME/${c#"~/"};; esac; '
    'if command -v "$c" >/dev/null 2>&1; then '
    f'"$c" -S -E -s -u -c "{_PYTHON_SOURCE}" $r; s=$?; case $s in 0|129|130|137|142|143) exit $s;; esac; '
    f'if [ $s = {EXIT_STDIN_EATEN} ]; then r="$r $s"; break; fi; '
    f"if [ $s = {EXIT_NOT_FOUND} ]; then s={EXIT_NOT_STARTABLE}; fi; "
    f"else s={EXIT_NOT_FOUND}; fi; "
    'r="$r $s"; done; '
    f'(: >/dev/null) 2>&- || r="$r {EXIT_NO_NULL}"; '
    'printf "\\036runbook-supervisor none%s\\n" "$r"; exit 96'
)

_NAME_SCRIPT = (
    'case $p in "exit #"*) p=${p#exit ?};; '
    f'*) printf "\\036runbook-supervisor none {EXIT_STDIN_EATEN}\\n"; exit 96;; esac;'
)

_SHELL_SAFE_PATH = re.compile(r"\A[A-Za-z0-9_./+~-]+\Z")


def bootstrap_command(python: str) -> str:
    """The command to run on a node that has this interpreter in the inventory."""
    if _SHELL_SAFE_PATH.match(python):
        return f"exec /bin/sh -c 'p=\"{python}\"; {_SHELL_SCRIPT}'"
    return f"exec /bin/sh -c 'IFS= read -r p; {_NAME_SCRIPT} {_SHELL_SCRIPT}'"


def bootstrap_input(python: str) -> bytes:
    """The bytes to write to the command's stdin before the first frame: the interpreter's name when the command does
    not hold it, then the supervisor. `python` must not contain a line break."""
    source = _compressed_supervisor()
    name = b"" if _SHELL_SAFE_PATH.match(python) else b"exit #" + python.encode() + b"\n"
    return name + b"exit #" + str(len(source)).encode() + b"\n" + source


@functools.cache
def _compressed_supervisor() -> bytes:
    return zlib.compress(node_programs.standalone_program(node_programs.SUPERVISOR_MODULE), 9)


# The results of the command.

MAX_KEPT_NOISE_BYTES = 1 << 16
"""Bytes that are kept of a login's output before the supervisor's first line."""

MAX_NOISE_BYTES = 16 << 20
"""Bytes that a login may print before that line; a login that prints more is given up."""

_NULL_COMPLAINT = re.compile(r"create /dev/null|/dev/null: (?:Permission denied|Read-only|No space)")
"""The words in which shells complain about /dev/null."""

PASSWORD_EXPIRED = re.compile(
    r"password (?:has |is )?expired|password change required|must change your password", re.IGNORECASE
)
"""The words that PAM and sshd print, instead of running a command, when the account's password has expired."""


_NO_SHELL = re.compile(r"/bin/sh[^\n]{0,80}(?:no such file|not found)", re.IGNORECASE)


class NoPython(Unreachable):
    """The node was reached and has no usable Python: a failed check, not an unreachable node."""


class SilentPython(NoPython):
    """A Python was started on the node and gave no answer in time."""


class Opening:
    """Reads the output before the supervisor's first frame: whatever a login prints, then SUPERVISOR_MARK.

    `over`: the supervisor has started. `codes`: the exit codes of the interpreters, when none of them worked. `noise`:
    the last 4096 bytes that the login printed."""

    def __init__(self) -> None:
        self.over = False
        self.refused = False  # the bootstrap found no Python, or the login prints for ever
        self.noise = b""
        self.codes: tuple[int, ...] | None = None
        self._held = b""
        self._seen = 0

    def feed(self, data: bytes) -> bytes:
        """The bytes that follow SUPERVISOR_MARK and belong to frames; empty until SUPERVISOR_MARK has arrived."""
        self._seen += len(data)
        self._held += data
        noise, mark, rest = self._held.partition(SUPERVISOR_MARK)
        if not mark:
            self.noise, self._held = (
                self._held[-4096:],
                self._held[-MAX_KEPT_NOISE_BYTES:],
            )  # a mark may have begun to arrive
            self.refused = self._seen > MAX_NOISE_BYTES
            return b""
        self.noise = noise[-4096:]
        if not rest.startswith(b"none"[: len(rest)]):
            self.over = True
            return rest
        if b"\n" in rest or len(rest) > MAX_KEPT_NOISE_BYTES:
            self.codes = tuple(int(code) for code in re.findall(rb"\b[0-9]{1,3}\b", rest[:MAX_KEPT_NOISE_BYTES]))
            self.refused = True
        return b""


def no_supervisor_failure(node: str, place: str, opening: Opening, complaint: str) -> Unreachable:
    """Why the login gave a shell but no supervisor."""
    codes, said = opening.codes, last_evidence_lines(opening.noise, complaint)
    if codes is not None and EXIT_STDIN_EATEN not in codes:
        return _no_python_failure(node, place, codes, complaint)
    cause = "login-shell-failed"
    if codes is not None:
        way, says = "reads-input", f"a startup file of the login shell of {node} reads what is meant for our program"
    elif opening.refused:
        way, most = "prints", MAX_NOISE_BYTES >> 20
        says = f"the login shell of {node} printed more than {most} MiB and did not start our program"
    elif any(PASSWORD_EXPIRED.search(line) for line in said):
        cause, way = "ssh-auth-failed", "password-expired"
        says = f"{node} lets this account run nothing until its password, which has expired, is changed: {said[-1]!r}"
    else:
        way, says = "runs-nothing", f"the login shell of {node} ended without running our command"
        says += f": {said[-1]!r}" if said else ", and said nothing"
    seen = said or ("the session ended without output on either stream",)
    return unreachable_for(cause, says, seen, way=way, node=node)


def _no_python_failure(node: str, place: str, codes: tuple[int, ...], complaint: str) -> NoPython:
    """Why no Python at `place` works; `codes` are the exit codes of the interpreters that were tried."""
    said = last_evidence_lines(complaint)
    broken = next((line for line in said if _NULL_COMPLAINT.search(line)), "")
    if broken or EXIT_NO_NULL in codes:  # what the shell says may come later than its exit codes
        says = f"programs on {place} cannot write to /dev/null" + (f": {broken!r}" if broken else "")
        return NoPython("login-shell-failed", says, remedy_from_page("login-shell-failed", "no-null", node=node), said)
    tried = "neither the inventory's `python:` nor python3 or python on PATH"
    if EXIT_TOO_OLD in codes and all(code in (EXIT_TOO_OLD, EXIT_NOT_FOUND, 2) for code in codes):
        cause, way, says = "python-too-old", "every", f"every Python on {place} is older than 3.8"
    elif ends := sorted({end.signal_name for end in map(ProcessEnd, codes) if end.signal_name}):
        cause, way = "python-missing", "crashes"
        says = f"no Python starts on {place}: {' and '.join(ends)} ends each that is there, before it has begun"
    elif place != node:
        cause, way, says = "python-missing", "container", f"{place} has no Python that starts: {tried} there"
    else:
        cause, way, says = "python-missing", "none", f"{node} has no Python that starts: {tried}"
    return NoPython(cause, says, remedy_from_page(cause, way, node=node, place=place), said)


def no_shell_failure(place: str, seen: tuple[str, ...]) -> Unreachable | None:
    """The failure for a container without /bin/sh; None when the runtime's words, `seen`, do not say that."""
    if not _NO_SHELL.search("\n".join(seen)):
        return None
    says = f"{place} has no /bin/sh, so no Python can be found either"
    return unreachable_for("python-missing", says, seen, way="image")


def supervisor_timeout_failure(
    node: str, place: str, python: str, noise: bytes, complaint: str, *, timeout_s: float, reason: Unreachable | None
) -> Unreachable:
    """The failure when no supervisor has answered within `timeout_s`. `reason` is the transport's own explanation; it
    is not used when a Python was started and stayed silent."""
    if SHELL_MARK in noise:
        return SilentPython(
            "python-missing",
            f"{python} on {place} does not start: it was started, and gave no answer within {timeout_s:g} s",
            remedy_from_page("python-missing", "silent", node=node, python=shell_word(python)),
            last_evidence_lines(noise, complaint),
        )
    return reason or unreachable_for(
        "ssh-timeout",
        f"{node} accepted the login, but its login shell started nothing within {timeout_s:g} s: something in "
        "~/.bashrc, ~/.ssh/rc or another startup file waits, or the home folder hangs",
        last_evidence_lines(noise, complaint),
        way="startup-file",
        node=node,
    )


def last_evidence_lines(*texts: str | bytes) -> tuple[str, ...]:
    """The last six lines of each text as evidence, without blank ones and without our own SHELL_MARK mark."""
    lines: list[str] = []
    for text in texts:
        decoded = text.decode(errors="replace") if isinstance(text, bytes) else text
        theirs = decoded.replace(SHELL_MARK.decode(), "")
        lines.extend(line for line in theirs.splitlines()[-6:] if line.strip())
    return tuple(lines)
