"""The one command that turns a login shell into our supervisor.

It is plain ASCII without single quotes inside, backslash sequences that fish would read, line breaks or `!`, so that
sh, bash, dash, zsh, fish, csh and tcsh all pass it on untouched to `/bin/sh`. The only thing of the user's in it is the
interpreter's name, and only where that is made of harmless characters; any other name comes as the first line of
stdin, which `read` takes byte by byte. The supervisor's source follows on stdin, its length first; it has to arrive
within ALARM_S, so that nothing waits for ever on a node whose network died in that moment.

A `.bashrc` may become another program, which then takes our stdin for its own. So the first line there is one that every
shell understands: `exit`, with the length behind a `#`.
"""

from __future__ import annotations

import functools
import re
import zlib
from importlib import resources

MARK = b"\x1erunbook-agent "
"""Starts the supervisor's first line; what a talkative `.bashrc` or banner printed before it is not ours."""

STARTED = b"\x1erunbook-shell"
"""Said by our shell before it calls a Python: from there on it is no startup file that keeps us waiting."""

ALARM_S = 20

_PYTHON = (
    "import sys; sys.exit(97) if sys.version_info < (3, 8) else None; "
    "sys.path[:] = [p for p in sys.path if p]; "
    "import signal, zlib; "
    f"hasattr(signal, 'alarm') and signal.alarm({ALARM_S}); "
    "a, b, n = sys.stdin.buffer.readline().partition(b'exit #'); "
    "sys.exit(98) if a or not b else None; "
    "n = int(n); "
    "s = sys.stdin.buffer.read(n); "
    "hasattr(signal, 'alarm') and signal.alarm(0); "
    "exec(compile(zlib.decompress(s), 'runbook-agent', 'exec'))"
).replace("'", '\\"')

_SHELL = (
    'r=; printf "\\036runbook-shell\\n"; '
    'for c in "$p" python3 python /usr/libexec/platform-python; do '
    'case $c in "~/"*) c=$HOME/${c#"~/"};; esac; '
    'if command -v "$c" >/dev/null 2>&1; then '
    f'"$c" -S -E -s -u -c "{_PYTHON}" $r; s=$?; case $s in 0|129|130|137|142|143) exit $s;; esac; '
    'if [ $s = 98 ]; then r="$r $s"; break; fi; '
    "else s=127; fi; "
    'r="$r $s"; done; '
    'printf "\\036runbook-agent none%s\\n" "$r"; exit 96'
)

_NAME = 'case $p in "exit #"*) p=${p#exit ?};; *) printf "\\036runbook-agent none 98\\n"; exit 96;; esac;'

_HARMLESS = re.compile(r"\A[A-Za-z0-9_./+~-]+\Z")

TOO_OLD = 97
EATEN = 98
MISSING = 127


def command(python: str) -> str:
    """What is run on the node for an inventory that names this interpreter."""
    if _HARMLESS.match(python):
        return f"exec /bin/sh -c 'p=\"{python}\"; {_SHELL}'"
    return f"exec /bin/sh -c 'IFS= read -r p; {_NAME} {_SHELL}'"


def first_input(python: str) -> bytes:
    """What is written to the command's stdin before the first frame. `python` must not contain a line break."""
    source = _supervisor()
    name = b"" if _HARMLESS.match(python) else b"exit #" + python.encode() + b"\n"
    return name + b"exit #" + str(len(source)).encode() + b"\n" + source


@functools.cache
def _supervisor() -> bytes:
    """The supervisor's source, behind that of the module which it imports and nobody has put on its disk."""
    owned, agent = (
        resources.files("runbook.node").joinpath(f"{name}.py").read_text("utf-8") for name in ("owned", "agent")
    )
    module = (
        f"import sys, types; owned = sys.modules['owned'] = types.ModuleType('owned'); exec({owned!r}, owned.__dict__)"
    )
    return zlib.compress(f"{module}\n{agent}".encode(), 9)
