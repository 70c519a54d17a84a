"""`-e`: variables from the command line. `K=V`, `@file.yml`, or a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from runbook.load.document import mapping_problem, plain_scalar, read_document
from runbook.model.errors import FilesWrong, Problem

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_extra(arguments: Iterable[str]) -> dict[str, object]:
    """All variables, later ones over earlier ones. Raises FilesWrong with every problem."""
    variables: dict[str, object] = {}
    problems: list[Problem] = []
    for argument in arguments:
        found, wrong = _one(argument)
        problems.extend(wrong)
        for name, value in found.items():
            if _NAME.fullmatch(name):
                variables[name] = value
            else:
                message = f"-e {argument}: `{name}` cannot be the name of a variable"
                problems.append(Problem("extra.bad-name", message, None, "letters, digits and _, and no digit first"))
    if problems:
        raise FilesWrong(problems)
    return variables


def _one(argument: str) -> tuple[dict[str, object], list[Problem]]:
    if argument.startswith("@"):
        return _file(argument[1:])
    if argument.lstrip().startswith("{"):
        return _json(argument)
    name, equals, text = argument.partition("=")
    if not equals:
        help = "write -e name=value, -e @file.yml or -e '{\"name\": 1}'"
        return {}, [Problem("extra.syntax", f"-e {argument}: there is no `=`", None, help)]
    return {name.strip(): text if text == "" else plain_scalar(text)}, []


def _file(path: str) -> tuple[dict[str, object], list[Problem]]:
    document = read_document(path)
    if document.problems:
        return {}, list(document.problems)
    if not isinstance(document.data, dict):
        problem = mapping_problem(document, "a file for -e")
        return {}, [problem] if problem else []
    return document.data, []


def _json(argument: str) -> tuple[dict[str, object], list[Problem]]:
    try:
        value = json.loads(argument, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return {}, [Problem("extra.syntax", f"-e {argument}: this is not JSON: {error}")]
    return value, []


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not a JSON value")
