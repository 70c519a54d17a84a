"""Where the package fills in a remedy of a cause's page, found in its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from syntax_trees import nodes, syntax_tree

from runbook.causes.catalogue import cause_pages

RENDERERS = ("finding_for", "unreachable_for", "remedy_from_page", "proves", "explains")
NO_FIELDS = {"way", "evidence", "peers"}
OF_SUPPORT = {"also", "about", "ports"}
"""What `explains` takes beside the fields."""


@dataclass(frozen=True)
class Rendered:
    """One call. `ways`: the cause and the way of each page's remedy that it may choose; `named`: it names both itself;
    `fields`: what it fills in, by name; `places`: where the names that it uses may come from."""

    line: int
    ways: frozenset[tuple[str, str]]
    named: bool
    fields: Mapping[str, ast.expr]
    places: tuple[ast.AST, ...]


def rendered(file: Path) -> Iterator[Rendered]:
    functions = [node for node in nodes(file) if isinstance(node, ast.FunctionDef)]
    constants = [node for node in syntax_tree(file).body if isinstance(node, ast.Assign)]
    for call in nodes(file):
        name = called(call) if isinstance(call, ast.Call) else ""
        if not isinstance(call, ast.Call) or name not in RENDERERS:
            continue
        no_fields = NO_FIELDS | OF_SUPPORT if name == "explains" else NO_FIELDS
        given = {str(keyword.arg): keyword.value for keyword in call.keywords}
        otherwise = ast.Constant("live" if name.endswith("_for") else "")
        asked = call.args[1] if name == "remedy_from_page" and len(call.args) > 1 else given.get("way", otherwise)
        places = (*constants, *(f for f in functions if f.lineno <= call.lineno <= (f.end_lineno or 0)))
        found = texts_chosen(places, call.args[0]) & cause_pages().keys()
        ways = texts_chosen(places, asked)
        yield Rendered(
            call.lineno,
            frozenset((cause, way) for cause in found for way in ways & cause_pages()[cause].remedies.keys()),
            isinstance(call.args[0], ast.Constant) and isinstance(asked, ast.Constant),
            {field: value for field, value in given.items() if field not in no_fields},
            places,
        )


def called(call: ast.Call) -> str:
    """The name of what is called, of a module or of an object."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def texts_in(node: ast.AST) -> Iterator[ast.Constant]:
    """The texts an expression may have as its value: `"a" if x else "b"` has two."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    elif isinstance(node, ast.IfExp):
        yield from texts_in(node.body)
        yield from texts_in(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from texts_in(value)


def texts_chosen(places: tuple[ast.AST, ...], value: ast.AST) -> set[str]:
    """The texts that an expression may have as its value, and those of what is assigned to its names in these
    places."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    constants = [text for one in assigned(places, names) for text in constants_in(one)]
    return {str(text.value) for text in (*texts_in(value), *constants)}


def constants_in(node: ast.AST) -> Iterator[ast.Constant]:
    """Of an expression, without what its conditions compare."""
    if isinstance(node, ast.Constant):
        yield node
    for part in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.IfExp) and part is node.test):
            yield from constants_in(part)


def assigned(places: tuple[ast.AST, ...], names: set[str]) -> Iterator[ast.expr]:
    """What is assigned to any of these names there."""
    for place in places:
        for node in ast.walk(place):
            if isinstance(node, ast.Assign):
                yield from _assigned(node.targets[0], node.value, names)


def _assigned(target: ast.expr, value: ast.expr, names: set[str]) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from _assigned(one, its, names)
    elif names & {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}:
        yield value
