"""Guesses the value that was meant by a word or a list where the schema wants a mapping, and the other way round."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runbook.files.address import address_fault, strip_brackets
from runbook.files.misplaced_keys import translated_node_settings
from runbook.files.scalars import flow_yaml
from runbook.files.yaml_document import KeyPath

_MAX_SHOWN_CHARACTERS = 100  # characters of what is shown
_MAX_ITEMS = 50  # items of a list that are looked at
_MAIN_KEY = {
    "network": "interface",
    "infiniband": "hca",
    "slurm": "job",
    "kubernetes": "pod",
    "groups": "nodes",
}
"""The key that a bare word is the value of, by the mapping in whose place the word stands; under `groups` the word
stands in the place of a group."""
_NODE_NAME_KEYS = ("name", "host", "hostname", "node")  # the keys by which others name the nodes of a list
_BOOLEAN_WORDS = {
    **dict.fromkeys(("yes", "y", "on", "true"), True),
    **dict.fromkeys(("no", "n", "off", "false"), False),
}
_MASTER_AND_PORT = re.compile(r"(?P<master>[\w.-]+)(?::(?P<port>[0-9]{1,5}))?")
_SSH_LOGIN = re.compile(r"(?:(?P<user>[^@\s]{1,64})@)?(?P<host>[\w.-]+)(?::(?P<port>[0-9]{1,5}))?")
_LINE_CONTINUATION = re.compile(r"\\[ \t]*\n")
_INDICES = re.compile(r"([0-9]{1,2})\s*-\s*([0-9]{1,2})")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def meant_value_help(keys: KeyPath, value: object, sound: Callable[[Any], bool]) -> str | None:
    """The help that shows the value as the schema wants it, such as `network: {interface: ib0}` for the word ib0; None
    if no candidate is `sound`. `keys` is where the value stands."""
    if isinstance(value, Mapping) and value and all(key.startswith("-") for key in value):
        return f"a space is missing after the dash: `- {next(iter(value)).lstrip('-')}: …`"
    if not keys or (isinstance(value, list | Mapping) and len(value) > _MAX_ITEMS):
        return None
    if (told := _no_replacement_help(keys[-1], value)) is not None:
        return told
    if isinstance(value, str) and len(value) > 10 * _MAX_SHOWN_CHARACTERS:  # the result would be too long to show
        return None
    made = next((one for one in _candidate_values(keys, value) if sound(one)), None)
    if made is None:
        return None
    try:
        shown = flow_yaml(made)
    except (ValueError, RecursionError):
        return None
    return (
        f"write `{f'{keys[-1]}: ' if isinstance(keys[-1], str) else ''}{shown}`"
        if len(shown) <= _MAX_SHOWN_CHARACTERS
        else None
    )


def _no_replacement_help(name: str | int, value: object) -> str | None:
    """The help for a value that no other single value can replace; None for any other value."""
    if name == "check" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        stages = ", ".join(f"`- check: {item}`" for item in value)
        return (
            f"write one stage for each: {stages}"
            if len(stages) <= _MAX_SHOWN_CHARACTERS
            else "write one stage for each"
        )
    if name == "container" and isinstance(value, str) and re.search("[/:]", value):
        return "no container is started from an image: name one that is there, `{runtime: docker, name: train}`"
    if name == "gpus" and isinstance(value, str) and value.lower() in ("all", "auto"):
        return "write how many each node has, as `gpus: 8`; `runbook inventory init HOST…` asks the nodes"
    return None


def _candidate_values(keys: KeyPath, value: object) -> Iterator[object]:
    """Values that may have been meant, the likeliest first."""
    name, within = keys[-1], keys[-2] if len(keys) > 1 else None
    truth = _BOOLEAN_WORDS.get(value.strip().lower()) if isinstance(value, str) else value if value is True else None
    if truth is not None:
        yield truth
        yield from ({},) if truth else ()
        return
    if isinstance(value, str) and value.strip():
        yield from _candidates_for_text(name, within, value.strip())
    elif isinstance(value, list):
        yield from _candidates_for_list(name, value)
    elif isinstance(value, Mapping) and name == "stages":
        yield [{"check": check, **({"with": body} if body else {})} for check, body in value.items()]
    elif isinstance(value, Mapping) and name == "shell" and isinstance(line := value.get("cmd"), str):
        folder = value.get("chdir")
        yield f"cd {shlex.quote(folder)} && {line}" if isinstance(folder, str) else line
    elif isinstance(value, int) and name == "expect":
        yield {"exit": value}
    if isinstance(value, str | int) and not isinstance(value, bool) and (name in _MAIN_KEY or within in _MAIN_KEY):
        yield {_MAIN_KEY.get(str(name)) or _MAIN_KEY[str(within)]: value}


def _candidates_for_text(name: str | int, within: str | int | None, text: str) -> Iterator[object]:
    """Candidates for a text, by the key `name` at which it stands and the key `within` which that stands."""
    shape = {"rendezvous": _MASTER_AND_PORT, "ssh": _SSH_LOGIN}.get(str(name))
    if shape is not None and (found := shape.fullmatch(text)):
        yield {key: int(part) if key == "port" else part for key, part in found.groupdict().items() if part}
    elif name == "gpus" and (found := _INDICES.fullmatch(text)):
        first, last = int(found[1]), int(found[2])
        yield last + 1 if first == 0 else list(range(first, last + 1))
    elif name == "container":
        yield {"runtime": "docker", "name": text}
    elif name == "env":
        yield from _parsed_assignments(text.split())
    elif name in ("command", "launch"):
        try:
            words = shlex.split(_LINE_CONTINUATION.sub(" ", text))
        except ValueError:  # its quotes do not match
            return
        yield words if name == "command" else {"command": words}
    elif name == "expect":
        yield {"stdout": text}
    elif name == "nodes" and within is None:
        yield {part: {} for part in re.split(r"[,\s]+", text) if part}
    elif within == "nodes" and address_fault(strip_brackets(text)) is None:
        yield {"address": strip_brackets(text)}
    elif within == "stages":
        yield {"check": text} if re.fullmatch("[a-z_-]+", text) else {"shell": text}
    elif "," in text:
        yield [part.strip() for part in text.split(",")]


def _candidates_for_list(name: str | int, items: list[object]) -> Iterator[object]:
    """Candidates for a list, such as keys with a dash each where a mapping has none."""
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) == len(items):
        yield from _parsed_assignments(texts)
        if name == "shell":
            yield shlex.join(texts)
        yield (":" if name == "nodes" else ",").join(texts)  # a pattern of nodes; a list for a variable
        yield {item: {} for item in texts} if name == "nodes" else {"nodes": texts}
    pairs = [item for item in items if isinstance(item, Mapping)]
    if len(pairs) < len(items):
        return
    naming = next((key for key in _NODE_NAME_KEYS if all(isinstance(item.get(key), str) for item in pairs)), None)
    if name == "nodes" and naming:
        rest = ({key: inner for key, inner in item.items() if key != naming} for item in pairs)
        yield {item[naming]: translated_node_settings(settings) for item, settings in zip(pairs, rest, strict=True)}
    yield {key: inner for item in pairs for key, inner in item.items()}


def _parsed_assignments(words: list[str]) -> Iterator[object]:
    found = [_ASSIGNMENT.fullmatch(word) for word in words]
    if words and all(found):
        yield {one[1]: one[2] for one in found if one}
