"""Reads the variables of `-e`: `K=V`, `@file.yml`, or a JSON object. Messages show only the name of a bad argument: its
value may be a secret, and logs of CI keep the message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from runbook.files.scalars import TypedFloat, plain_scalar
from runbook.files.suggestions import nearest_word
from runbook.files.templating import template_variables
from runbook.files.yaml_document import mapping_problem, read_document
from runbook.model.errors import FilesWrong, Problem
from runbook.model.playbook import Playbook
from runbook.model.secrets import contains_secret

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_.-]*")
_ASSIGNMENT_LIST = re.compile(r"\S*(?:\s+[A-Za-z_][A-Za-z0-9_]*=\S*)+\s*")  # `1 b=2` of `a=1 b=2`, as Ansible takes it


def parse_extra_vars(arguments: Iterable[str]) -> dict[str, object]:
    """All variables, later ones over earlier ones. Raises FilesWrong with every problem."""
    variables: dict[str, object] = {}
    problems: list[Problem] = []
    for argument in arguments:
        found, wrong = _parse_argument(argument)
        problems.extend(wrong)
        for name, value in found.items():
            if VARIABLE_NAME.fullmatch(name):
                variables[name] = value
            else:
                message = f"-e {_argument_name(argument)}: `{_argument_name(name)}` cannot be the name of a variable"
                problems.append(Problem("extra.bad-name", message, None, "letters, digits and _, and no digit first"))
    if problems:
        raise FilesWrong(problems)
    return variables


def unknown_extra_vars(arguments: Iterable[str], playbook: Playbook, inventory: object) -> list[str]:
    """The names of `-e` that neither the playbook nor the inventory knows. They are no mistakes, since one command line
    may serve many playbooks; but a name close to a known one raises FilesWrong. `inventory` is the data of its
    document. The names in an `@file.yml` are not judged."""
    typed = parse_extra_vars(argument for argument in arguments if not argument.startswith("@"))
    if not typed:
        return []
    known = sorted(_names_in_playbook(playbook) | _names_in_inventory(inventory) | template_variables(inventory))
    unknown = [name for name in typed if name not in known]
    meant = {name: near for name in unknown if (near := nearest_word(name, known))}
    if meant:
        message = "-e {0}: neither the playbook nor the inventory has a variable `{0}`"
        problems = [
            Problem("extra.unknown-variable", message.format(name), None, f"did you mean `{near}`?")
            for name, near in meant.items()
        ]
        raise FilesWrong(problems)
    return unknown


def _names_in_playbook(playbook: Playbook) -> set[str]:
    found = set(playbook.vars) | template_variables(playbook.vars)
    for stage in playbook.stages:
        launch = [stage.launch.command, stage.launch.env, stage.launch.workdir]
        found |= template_variables([stage.shell, launch, stage.arguments, stage.expect.stdout])
        if stage.when is not None:
            found |= template_variables(stage.when) | template_variables("{{ " + stage.when + " }}")
    return found


def _names_in_inventory(data: object) -> set[str]:
    """The names in every `vars:` of an inventory, at any level."""
    found: set[str] = set()
    if isinstance(data, Mapping):
        for key, value in data.items():
            found |= set(value) if key == "vars" and isinstance(value, Mapping) else _names_in_inventory(value)
    return found


def _argument_name(text: str) -> str:
    """The name at the beginning of an argument, with `…` where more follows; left out if it is the name of a secret."""
    begins = text.lstrip()[:1]
    name = _PRINTABLE_NAME.match(text.strip())
    shown = name[0] if name else ""
    if contains_secret(shown):
        shown = ""
    return f"{begins}…" if begins in ("{", "[") else shown if shown == text.strip() else f"{shown}…"


def _parse_argument(argument: str) -> tuple[dict[str, object], list[Problem]]:
    """The variables of one argument of `-e`, and the problems with it."""
    if argument.startswith("@"):
        return _read_vars_file(argument[1:])
    if argument.lstrip().startswith("{"):
        return _parse_json_object(argument)
    name, equals, text = argument.partition("=")
    if not equals:
        help = "write -e name=value, -e @file.yml or -e '{\"name\": 1}'"
        return {}, [Problem("extra.syntax", f"-e {_argument_name(argument)}: there is no `=`", None, help)]
    if _ASSIGNMENT_LIST.fullmatch(text):
        help = f'write one -e for each; of one value: -e \'{{"{_argument_name(name)}": "…"}}\''
        return {}, [Problem("extra.syntax", f"-e {_argument_name(argument)}: several variables in one -e", None, help)]
    value = text if text == "" else plain_scalar(text)
    return {name.strip(): TypedFloat(text) if isinstance(value, float) else value}, []


def _read_vars_file(path: str) -> tuple[dict[str, object], list[Problem]]:
    document = read_document(path)
    if document.problems:
        return {}, list(document.problems)
    if not isinstance(document.data, dict):
        problem = mapping_problem(document, "a file for -e")
        return {}, [problem] if problem else []
    return document.as_typed(document.data), []


def _parse_json_object(argument: str) -> tuple[dict[str, object], list[Problem]]:
    try:
        value = json.loads(argument, object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return {}, [Problem("extra.syntax", f"-e {_argument_name(argument)}: this is not JSON: {error}")]
    return value, []


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is not a JSON value")
