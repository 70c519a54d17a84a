"""The programs of `runbook/node/` as they are sent: with the modules of ours that they import, so that nothing has to
be installed on the node. The supervisor has the modules that most programs share: a program that is called in it is
sent with the rest only, and one that is started by itself is a single file. Line numbers are those of the source;
comments and docstrings are left out."""

from __future__ import annotations

import functools
import json
import re
from importlib import resources

ROOM = "runbook.node"

SUPERVISOR = "supervisor"
CARRIED = "tools"
"""The supervisor itself runs no tool of the node; programs that are called in it do."""

_IMPORTED = re.compile(rf"^from {re.escape(ROOM)}\.(\w+) import", re.MULTILINE)

QUOTES = '"""'

_CARRYING = """\
import sys, types
for _name, _text in {modules!r}.items():
    sys.modules[_name] = types.ModuleType(_name)
    exec(compile(_text, _name, "exec"), sys.modules[_name].__dict__)
exec(compile({text!r}, {name!r}, "exec"))
"""


def source(name: str) -> bytes:
    """The source of one module, as it is."""
    return resources.files(ROOM).joinpath(f"{name}.py").read_bytes()


@functools.cache
def called(name: str) -> bytes:
    """A program for the supervisor to run, by name, after the modules it imports that the supervisor does not have."""
    parts = [part for part in _needs(name) if part not in _supervisor_has()]
    return json.dumps({f"{ROOM}.{part}": _short(part) for part in parts} | {name: _short(name)}).encode()


@functools.cache
def started(name: str) -> bytes:
    """A program as one file. One that imports nothing of ours is sent as its source, which people read as well."""
    modules = {f"{ROOM}.{part}": _short(part) for part in (_supervisor_has() if name == SUPERVISOR else _needs(name))}
    if not modules:
        return source(name)
    return _CARRYING.format(modules=modules, text=_short(name), name=name).encode()


@functools.cache
def _supervisor_has() -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_needs(SUPERVISOR), *_needs(CARRIED), CARRIED)))


@functools.cache
def _needs(name: str) -> tuple[str, ...]:
    """What a program imports of ours, each after what it imports itself."""
    found: dict[str, None] = {}
    for part in _IMPORTED.findall(source(name).decode()):
        found.update(dict.fromkeys((*_needs(part), part)))
    return tuple(found)


@functools.cache
def _short(name: str) -> str:
    """The source without comments, docstrings and what only a type checker reads: a fifth less to send. Every line
    keeps its number."""
    lines = []
    typing = inside = document = False
    for line in source(name).decode().split("\n"):
        begins, quotes = line.lstrip()[:3], line.count(QUOTES)
        if not inside:
            typing = line == "if TYPE_CHECKING:" or (typing and line[:1] in ("", " "))
            document = begins == QUOTES
        indent = line[: len(line) - len(line.lstrip())]
        if typing or (not inside and begins.startswith("#")) or (inside and document):
            lines.append("")
        else:
            lines.append(f'{indent}""' if document else line)  # a body may have nothing else in it
        inside = inside != (quotes % 2 == 1)
    return "\n".join(lines)
