"""The files of rules: what their patterns are made of."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from runbook.diagnose.all_rules import FAMILIES, RULES, SIGNS, TABLES
from runbook.parsers.nvidia import CAUSE_OF

FOLDER = resources.files("runbook.diagnose").joinpath("rules")
FILES = {family: FOLDER.joinpath(f"{family}.toml").read_text("utf-8") for family in FAMILIES}


def test_every_file_is_read() -> None:
    assert {file.name for file in FOLDER.iterdir() if file.is_file()} == {f"{family}.toml" for family in FAMILIES}
    assert len(RULES) == sum(text.count("[[rules]]") for text in FILES.values()) > 150
    assert len({sign.name for sign in SIGNS}) == len(SIGNS) > 250


def test_every_shared_text_is_used_and_none_is_left_unfilled() -> None:
    named = {name for table in TABLES for name in table.get("texts", ())}
    assert named == {name for text in FILES.values() for name in re.findall(r"\{\{(\w+)\}\}", text)}
    assert [sign.name for sign in SIGNS if "{{" in (sign.pattern or "")] == []


@pytest.mark.parametrize("cause", sorted({cause for cause in CAUSE_OF.values() if cause}))
def test_the_kernel_proves_by_the_same_numbers_in_a_log_as_on_a_node(cause: str) -> None:
    lines = [f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1" for number, proven in CAUSE_OF.items() if proven == cause]
    signs = [sign for rule in RULES if rule.cause == cause for sign in rule.signs if not isinstance(sign, str)]
    patterns = [pattern for sign in signs if "xid" in sign.literals and (pattern := sign.compiled())]
    assert [line for line in lines if not any(pattern.search(line) for pattern in patterns)] == []
