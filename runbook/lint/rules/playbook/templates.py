"""Variables that nobody uses or that hide something, and templates where none is filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from runbook.lint.subject import PlaybookFile
from runbook.load.document import Keys
from runbook.load.templating import is_template, names_used
from runbook.model.errors import Problem

_PARSED = 2000  # templates of one file; of more, every word counts as a variable that is used
_WORD = re.compile(r"[A-Za-z_]\w*")
FACTS = ("nodes", "node_count", "world_size", "gpus", "backend", "infiniband", "master")


def unused_vars(file: PlaybookFile) -> Iterator[Problem]:
    """Looked for in the stages as they were typed: a stage that is wrong elsewhere still uses its variables."""
    if any(problem.id == "yaml.unquoted-template" for problem in file.document.problems):
        return  # what was to use it is lost
    stages = _data(file).get("stages")
    if not isinstance(stages, list):
        return  # and so are all uses
    unused = _without_used(set(file.playbook.vars), stages)
    for name in file.playbook.vars:
        if name in unused and file.document.key_span("vars", name) is not None:
            message = f"no stage uses the variable `{name}`"
            help = "remove it, or use it: {{ " + name + " }}"
            yield Problem("playbook.unused-var", message, file.document.key_span("vars", name), help)


def shadowed_facts(file: PlaybookFile) -> Iterator[Problem]:
    for name in file.playbook.vars:
        if name in FACTS:
            message = f"the variable `{name}` hides the fact of that name, which follows the inventory"
            yield Problem("playbook.shadowed-fact", message, file.document.key_span("vars", name), "rename it")


def templates_in_vars(file: PlaybookFile) -> Iterator[Problem]:
    for keys, text in _texts(_data(file).get("vars"), ("vars",)):
        if is_template(text):
            message = f"`{text}` is not filled in: whoever uses the variable gets the braces"
            help = "compute it in the stage that uses it"
            yield Problem("playbook.template-in-var", message, file.document.span(*keys), help)


def misplaced_templates(file: PlaybookFile) -> Iterator[Problem]:
    """At keys where nothing else would complain."""
    stages = _data(file).get("stages")
    places: list[Keys] = [("name",), ("inventory",)]
    for index, stage in enumerate(stages if isinstance(stages, list) else ()):
        if isinstance(stage, dict):
            places += [("stages", index, "name"), ("stages", index, "tags"), ("stages", index, "expect", "stdout")]
            places += [("stages", index, "launch", "barrier_folder")]
    for keys in places:
        for place, text in _texts(_at(_data(file), keys), keys):
            if "{{" in text and place not in file.wrong:
                message = f"the template in `{keys[-1]}` is not filled in: it stays as it stands"
                help = "templates belong into `with`, `shell`, and `command`, `env` or `workdir` of a launch"
                yield Problem("playbook.template-not-here", message, file.document.span(*place), help)


def _data(file: PlaybookFile) -> dict[str, Any]:
    return file.document.data if isinstance(file.document.data, dict) else {}


def _at(value: Any, keys: Keys) -> object:
    for key in keys:
        inside = key in value if isinstance(value, dict) else isinstance(value, list) and isinstance(key, int)
        value = value[key] if inside else None
    return value


def _texts(value: object, keys: Keys) -> Iterator[tuple[Keys, str]]:
    if isinstance(value, str):
        yield keys, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*keys, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*keys, index))


def _without_used(variables: set[str], stages: object) -> set[str]:
    """Those that no template mentions, nor any `when`, which is an expression without braces."""
    parsed = 0
    for keys, text in _texts(stages, ()):
        condition = keys[-1:] == ("when",)
        words = set(_WORD.findall(text)) if variables and (condition or is_template(text)) else set()
        if variables.isdisjoint(words):
            continue
        parsed += 1
        names = set()
        if parsed <= _PARSED:
            names = names_used(text) | (names_used("{{ " + text + " }}") if condition else set())
        variables = variables - (names or words)  # of a template that cannot be parsed, every word
    return variables
