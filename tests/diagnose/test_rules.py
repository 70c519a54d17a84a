"""The files of rules: what their patterns are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any

import pytest
from attacks.patterns import parser, sre

from runbook.diagnose.all_rules import RULE_FAMILIES, RULE_TABLES, RULES, SIGNS
from runbook.diagnose.judge import DEFAULT_GROUP_WORDS, Told
from runbook.diagnose.rule_types import Sign
from runbook.parsers.nvidia_logs import CAUSE_BY_XID

FOLDER = resources.files("runbook.diagnose").joinpath("rules")
FILES = {family: FOLDER.joinpath(f"{family}.toml").read_text("utf-8") for family in RULE_FAMILIES}


def test_every_file_is_read() -> None:
    assert {file.name for file in FOLDER.iterdir() if file.is_file()} == {f"{family}.toml" for family in RULE_FAMILIES}
    assert len(RULES) == sum(text.count("[[rules]]") for text in FILES.values()) > 150
    assert len({sign.name for sign in SIGNS}) == len(SIGNS) > 250


def test_every_shared_text_is_used_and_none_is_left_unfilled() -> None:
    named = {name for table in RULE_TABLES for name in table.get("texts", ())}
    assert named == {name for text in FILES.values() for name in re.findall(r"\{\{(\w+)\}\}", text)}
    assert [sign.name for sign in SIGNS if "{{" in (sign.pattern or "")] == []


def test_a_sentence_has_words_for_what_no_line_names() -> None:
    for rule in RULES:
        rule.says.format_map(Told(DEFAULT_GROUP_WORDS | {"who": "a node", "line": "a line"}))


@pytest.mark.parametrize("cause", sorted({cause for cause in CAUSE_BY_XID.values() if cause}))
def test_the_kernel_proves_by_the_same_numbers_in_a_log_as_on_a_node(cause: str) -> None:
    lines = [
        f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1" for number, proven in CAUSE_BY_XID.items() if proven == cause
    ]
    signs = [sign for rule in RULES if rule.cause == cause for sign in rule.signs if not isinstance(sign, str)]
    patterns = [pattern for sign in signs if "xid" in sign.literals and (pattern := sign.compiled())]
    assert [line for line in lines if not any(pattern.search(line) for pattern in patterns)] == []


def _plain(tree: Iterable[Any]) -> Iterator[str]:
    """The alternatives of a pattern that are nothing but text, as they are written in it."""
    parts = [(op, value) for op, value in tree if op not in (sre.AT, sre.ASSERT_NOT)]
    while parts and parts[0][0] in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        parts = parts[1:]
    if all(op is sre.LITERAL for op, _ in parts):
        yield "".join(chr(value) for _, value in parts)
    elif len(parts) == 1 and parts[0][0] is sre.SUBPATTERN:
        yield from _plain(parts[0][1][3])
    elif len(parts) == 1 and parts[0][0] is sre.BRANCH:
        for alternative in parts[0][1][1]:
            yield from _plain(alternative)


@pytest.mark.parametrize("sign", [sign for sign in SIGNS if sign.pattern], ids=lambda sign: sign.name)
def test_a_key_stands_in_every_plain_alternative_else_the_pattern_is_never_asked(sign: Sign) -> None:
    found = _plain(parser.parse(sign.pattern, re.IGNORECASE))
    texts = [text.lower() for text in found if not any(char.isdigit() for char in text)]
    assert [text for text in texts if not any(key in text for key in sign.literals)] == []
