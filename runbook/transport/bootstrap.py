"""The one fixed command that turns a login shell into our supervisor. No value of the user's is ever part of it.

It is plain ASCII without single quotes, backslash-sequences that fish would read, newlines or `!`, so that sh, bash,
dash, zsh, fish, csh and tcsh all pass it on untouched to `/bin/sh`. The interpreter's name comes as the first line
of stdin, which `read` takes byte by byte; the supervisor's source follows, its length first.
"""

from __future__ import annotations

from importlib import resources

MARK = b"\x1erunbook-agent "
"""Starts the supervisor's first line; what a talkative `.bashrc` or banner printed before it is not ours."""

_PYTHON = (
    "import sys; sys.exit(97) if sys.version_info < (3, 8) else None; "
    "sys.path[:] = [p for p in sys.path if p]; "
    "n = int(sys.stdin.buffer.readline()); "
    "s = sys.stdin.buffer.read(n); "
    "exec(compile(s, 'runbook-agent', 'exec'))"
).replace("'", '\\"')

_SHELL = (
    "IFS= read -r p; r=; "
    'for c in "$p" python3 python /usr/libexec/platform-python; do '
    'case $c in "~/"*) c=$HOME/${c#"~/"};; esac; '
    'if command -v "$c" >/dev/null 2>&1; then '
    f'"$c" -S -E -s -u -c "{_PYTHON}" $r; s=$?; [ $s = 0 ] && exit 0; '
    "else s=127; fi; "
    'r="$r $s"; done; '
    'printf "\\036runbook-agent none%s\\n" "$r"; exit 96'
)

COMMAND = f"exec /bin/sh -c '{_SHELL}'"

TOO_OLD = 97
MISSING = 127


def first_input(python: str) -> bytes:
    """What is written to the command's stdin before the first frame. `python` must not contain a line break."""
    source = resources.files("runbook.node").joinpath("agent.py").read_bytes()
    return python.encode() + b"\n" + str(len(source)).encode() + b"\n" + source
