"""Takes secrets and names out of texts, JSON, JSON lines and YAML, and leaves them what they were: JSON stays JSON."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import yaml

from runbook.collect.addresses import Machines
from runbook.collect.people import PeopleNames
from runbook.collect.secrets import Place, is_secret, looks
from runbook.load.document import Document, parse_document
from runbook.load.schema import schema
from runbook.model.redact import Forms, joined
from runbook.model.views import views

GONE = "REDACTED"
"""One plain word: a value in JSON, in YAML, in a shell and in a URL alike, which `***` is not."""

_OF_RUNS = frozenset(
    re.findall(
        r"[^\s,]+",
        """version run_id playbook inventory verdict exit_code stopped_at seconds causes stages not_run nodes run_dir cleaned name
    check outcomes silent node proof metrics findings warnings cause says remedy evidence peers event time stage text rank data
    outcome hostname path size sha256 command code missing truncated files status all pass fail unknown skip
    plan world_size first_rank devices remedy_commands bad dropped not_dropped links gbps us round attempt number launcher logs
    ends processes started ended state why skew_s pace step per_s age_s stall failed silent attempts job""",
    )
)


class Scrubber:
    """Learn from everything first: what is nobody's name in one file is somebody's home in the next."""

    def __init__(self, secrets: Iterable[str] = (), *, hide_addresses: bool = False) -> None:
        self.people = PeopleNames()
        self.machines: Machines | None = Machines() if hide_addresses else None
        self.secrets_found = 0
        self._known = Forms(secrets)
        self._ours = _OF_RUNS | _words_of_schemas()

    def learn(self, text: str) -> None:
        for view in views(text):
            self.people.learn(view.text)
            if self.machines:
                self.machines.learn(view.text)

    # Texts.

    def text(self, text: str) -> str:
        """The text with everything that has to go replaced, however it is written."""
        gone: list[Place] = []
        others: list[tuple[Place, str]] = []
        for view in views(text):
            gone += self._known.find(view)
            gone += [view.raw(*place) for place in looks(view.text)]
            others += [(view.raw(*place), other) for place, other in self._names(view.text)]
        places = [(place, GONE) for place in joined(gone)]
        self.secrets_found += sum(text[start:end] != GONE for (start, end), _ in places)
        return _replaced(text, places, others)

    def _names(self, text: str) -> Iterator[tuple[Place, str]]:
        yield from self.people.find(text)
        if self.machines:
            yield from self.machines.find(text)

    # Texts with a structure.

    def json(self, text: str, *, indent: int | None = None) -> str:
        """A JSON document; one that is none is a text."""
        try:
            return json.dumps(self.value(json.loads(text)), indent=indent)
        except (ValueError, RecursionError):
            return self.text(text)

    def json_lines(self, text: str) -> str:
        return "".join(self.json(line) + "\n" if line.strip() else "\n" for line in text.splitlines())

    def value(self, value: object, name: str = "") -> object:
        """The same structure with every text in it scrubbed; what stands under a secret's name goes whole."""
        if isinstance(value, dict):
            return {self.key(str(key)): self.value(item, str(key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._item(value, at, name) for at in range(len(value))]
        if value is None or isinstance(value, bool):
            return value
        if is_secret(name, str(value)):
            self.secrets_found += str(value) != GONE
            return GONE
        if isinstance(value, str) and (login := self.people.login(name, value)):
            return login
        return self.text(value) if isinstance(value, str) else value

    def _item(self, items: list[object], at: int, name: str) -> object:
        """`["--token", "abc"]`: a word may be the value of the one before it."""
        before = items[at - 1] if at else None
        if isinstance(before, str) and before.startswith("-") and isinstance(items[at], str):
            return self.value(items[at], before.lstrip("-"))
        return self.value(items[at], name)

    def key(self, key: str) -> str:
        return key if key in self._ours else self.text(key)

    def yaml(self, text: str, name: str) -> str:
        """The source of a YAML file, comments and all; where that would not load any more, what it says without them."""
        document = parse_document(text, name)
        if document.data is None:
            return self.text(text)
        places = list(_secret_values(document))
        self.secrets_found += len(places)
        scrubbed = self._yaml_text(_replaced(text, [(place, GONE) for place in joined(places)], []), document)
        again = parse_document(scrubbed, name)
        if again.data is not None and not again.problems and _shape(again.data) == _shape(document.data):
            return scrubbed
        head = "# the comments are left out: with what had to be taken out, the file as it was written would not load\n"
        return head + yaml.safe_dump(self.value(document.data), sort_keys=False, allow_unicode=True, width=120)

    def _yaml_text(self, text: str, document: Document) -> str:
        scrubbed = self.text(text)
        keys = {key for keys in document.key_spans for key in keys[-1:] if isinstance(key, str)}
        if not any(self.text(key) != key for key in keys & self._ours):
            return scrubbed
        return ""  # a name is also a key of ours: only what is known to be a value may be replaced


def _words_of_schemas() -> frozenset[str]:
    """Every key that our files can have."""

    def keys(part: object) -> Iterator[str]:
        if isinstance(part, dict):
            properties = part.get("properties")
            yield from properties if isinstance(properties, dict) else ()
            for inner in part.values():
                yield from keys(inner)
        elif isinstance(part, list):
            for inner in part:
                yield from keys(inner)

    return frozenset(key for kind in ("inventory", "playbook") for key in keys(schema(kind)))


def _secret_values(document: Document) -> Iterator[Place]:
    """The values under names that say they are secret, whatever their style: plain, quoted, or a block of lines."""
    starts = [0]
    for line in document.lines[:-1]:
        end = starts[-1] + len(line)
        starts.append(end + (2 if document.text.startswith("\r\n", end) else 1))
    for keys in document.spans:
        name = next((key for key in reversed(keys) if isinstance(key, str)), "")
        value: object = document.data
        for key in keys:
            value = value[key]  # type: ignore[index]
        if value is None or isinstance(value, (dict, list, bool)) or not is_secret(name, str(value)):
            continue
        extent = document.extent(*keys)
        if extent:
            (first, column), (last, after) = extent
            begin = starts[first - 1] + column - 1
            stop = starts[last - 1] + after - 1 if last <= len(starts) else len(document.text)
            yield begin, begin + len(document.text[begin:stop].rstrip())


def _shape(value: object) -> object:
    """What stays when texts are replaced: keys may be renamed, but there are as many of them, and lists are as long."""
    if isinstance(value, dict):
        return [_shape(item) for item in value.values()]
    if isinstance(value, list):
        return [_shape(item) for item in value] + ["list"]
    return None


def _replaced(text: str, gone: list[tuple[Place, str]], others: list[tuple[Place, str]]) -> str:
    """Of names the earliest and longest; a name that reaches into a secret goes with it, whole."""
    hidden = [place for place, _ in gone]
    while True:
        touching = [place for place, _ in others if _touches(place, hidden)]
        both = joined([*hidden, *touching])
        if both == hidden:
            break
        hidden = both
    chosen = [(place, GONE) for place in hidden]
    last = 0
    for (start, end), other in sorted(others, key=lambda one: (one[0][0], -one[0][1])):
        if last <= start < end and not _touches((start, end), hidden):
            chosen.append(((start, end), other))
            last = end
    parts: list[str] = []
    at = 0
    for (start, end), other in sorted(chosen):
        parts += [text[at:start], other]
        at = end
    return "".join([*parts, text[at:]])


def _touches(place: Place, ordered: list[Place]) -> bool:
    """Whether a place shares a character with one of many that do not overlap."""
    at = bisect_left(ordered, place)
    return any(place[0] < end and start < place[1] for start, end in ordered[max(0, at - 1) : at + 1])
