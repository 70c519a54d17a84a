"""The programs of `runbook/node/` in the form in which they are sent to a node, where nothing of ours is installed.

A program that the supervisor runs inside itself is sent with those modules it imports that the supervisor does not have
yet. A program that is started as a process of its own is sent as a single file with all its modules. Comments and
docstrings are left out; line numbers stay those of the source."""

from __future__ import annotations

import functools
import json
import re
from importlib import resources

NODE_PACKAGE = "runbook.node"

SUPERVISOR_MODULE = "supervisor"
TOOLS_MODULE = "tools"
"""A module that is sent with the supervisor, though the supervisor runs no tool of the node: most programs that are
called in it do."""

_NODE_IMPORT = re.compile(rf"^from {re.escape(NODE_PACKAGE)}\.(\w+) import", re.MULTILINE)

DOCSTRING_QUOTES = '"""'

_PROGRAM_TEMPLATE = """\
import sys, types
for _name, _text in {modules!r}.items():
    sys.modules[_name] = types.ModuleType(_name)
    exec(compile(_text, _name, "exec"), sys.modules[_name].__dict__)
exec(compile({text!r}, {name!r}, "exec"))
"""


def program_source(name: str) -> bytes:
    """The unchanged source of a module of `runbook/node/`."""
    return resources.files(NODE_PACKAGE).joinpath(f"{name}.py").read_bytes()


@functools.cache
def in_supervisor_program(name: str) -> bytes:
    """A program that the supervisor is to run inside itself: a JSON object from module name to source. The modules that
    the program imports and the supervisor does not have come first, the program last."""
    parts = [part for part in _imported_modules(name) if part not in _supervisor_modules()]
    return json.dumps(
        {f"{NODE_PACKAGE}.{part}": _stripped_source(part) for part in parts} | {name: _stripped_source(name)}
    ).encode()


@functools.cache
def standalone_program(name: str) -> bytes:
    """A program as one file. A program that imports no module of ours is its unchanged source, since people read that
    file as well."""
    modules = {
        f"{NODE_PACKAGE}.{part}": _stripped_source(part)
        for part in (_supervisor_modules() if name == SUPERVISOR_MODULE else _imported_modules(name))
    }
    if not modules:
        return program_source(name)
    return _PROGRAM_TEMPLATE.format(modules=modules, text=_stripped_source(name), name=name).encode()


@functools.cache
def _supervisor_modules() -> tuple[str, ...]:
    """The modules of ours that the supervisor has, and called programs need not bring."""
    return tuple(dict.fromkeys((*_imported_modules(SUPERVISOR_MODULE), *_imported_modules(TOOLS_MODULE), TOOLS_MODULE)))


@functools.cache
def _imported_modules(name: str) -> tuple[str, ...]:
    """The modules of ours that a program imports, directly or not; each after the modules that it imports itself."""
    found: dict[str, None] = {}
    for part in _NODE_IMPORT.findall(program_source(name).decode()):
        found.update(dict.fromkeys((*_imported_modules(part), part)))
    return tuple(found)


@functools.cache
def _stripped_source(name: str) -> str:
    """The source without comment lines, docstrings and `if TYPE_CHECKING:` blocks: a fifth less to send. Every line
    keeps its number."""
    lines = []
    typing = inside = document = False
    for line in program_source(name).decode().split("\n"):
        begins, quotes = line.lstrip()[:3], line.count(DOCSTRING_QUOTES)
        if not inside:
            typing = line == "if TYPE_CHECKING:" or (typing and line[:1] in ("", " "))
            document = begins == DOCSTRING_QUOTES
        indent = line[: len(line) - len(line.lstrip())]
        if typing or (not inside and begins.startswith("#")) or (inside and document):
            lines.append("")
        else:
            lines.append(f'{indent}""' if document else line)  # a body may have nothing else in it
        inside = inside != (quotes % 2 == 1)
    return "\n".join(lines)
