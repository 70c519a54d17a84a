"""The programs of `runbook/node/` as they are sent: with the modules of ours that they import, and nothing has to lie on the node.

The supervisor carries what most programs share. So one that is called in it comes with the rest alone, and one that is started by
itself is a single file. What is sent has the lines of its source, without what is written there for its readers.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from importlib import resources

ROOM = "runbook.node"

SUPERVISOR = "supervisor"
CARRIED = "tools"
"""The supervisor needs no tool of the node; what is called in it does."""

_IMPORTED = re.compile(rf"^from {re.escape(ROOM)}\.(\w+) import", re.MULTILINE)

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
    """A program that the supervisor is to run, by name, after what it imports and the supervisor has not."""
    parts = [part for part in _needs(name) if part not in _supervisor_has()]
    return json.dumps({f"{ROOM}.{part}": _short(part) for part in parts} | {name: _short(name)}).encode()


@functools.cache
def started(name: str) -> bytes:
    """A program as one file. One that needs nothing else of ours is its source, which others read as well."""
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
    """The source without comments, docstrings and what only a type checker reads: a fifth less to send. Every line keeps its number."""
    text = source(name).decode()
    unread: set[int] = set()
    texts: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.update(_lines(node))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            unread.update(_lines(node))
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) and len(body) > 1 else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                unread.update(_lines(one))
    shown = (
        "" if at in unread or (at not in texts and line.lstrip().startswith("#")) else line
        for at, line in enumerate(text.split("\n"), 1)
    )
    return "\n".join(shown)


def _lines(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
