"""The signs and rules of all families, read from `rules/FAMILY.toml`.

A family's file has `[[rules]]`: the fields of a Rule, with its signs. These are names (`signs = [...]`), or the signs
themselves (`[[rules.signs]]`: fields of a Sign; without `keys`, only the name of a sign defined elsewhere). `[[signs]]`
defines signs that belong to no single rule. `keys`, `pattern` and texts may be lists: alternatives, joined by `|`.
The sentence of a rule (`says`) has holes for groups of its signs: `{port}`, or `{late|a rank}` with words to use if no
line names the group.

In a pattern, `{{name}}` stands for a text of `[texts]` of any family, and `{{xid 63 gpu-fell-off-bus}}` for a kernel
line with one of these Xid numbers: the numbers given, and those that prove the causes given; or `{{xid any}}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from runbook.diagnose.kept_lines import DEFAULT_SCAN_LIMITS, ScanLimits
from runbook.diagnose.rule_types import Rule, Sign, Tier, joined_alternatives
from runbook.diagnose.scan import Catalogue, Scanner
from runbook.files.shipped_files import load_own_table
from runbook.parsers.nvidia_logs import CAUSE_BY_XID, CAUSED_BY_XID

RULE_FAMILIES = (
    *("reaching", "slurm", "addresses", "sockets", "interfaces", "rendezvous", "ranks", "program", "builds"),
    *("accelerators", "containers", "rdma", "nccl", "ncclras", "unexplained"),
)
XID_PREFIX = r"(?:(?-i:\bX[Ii][Dd]\b)|\b(?:GPU|NVRM)\b.{0,40}\bxid\b)"
"""How a driver's line names an Xid. In small letters the word needs GPU or NVRM before it: databases call a transaction
xid as well."""
_TEXT_REFERENCE = re.compile(r"\{\{(\w+)((?: [\w-]+)*)\}\}")

TomlTable = Mapping[str, Any]


RULE_TABLES: list[TomlTable] = [
    load_own_table("runbook.diagnose", "rules", f"{family}.toml") for family in RULE_FAMILIES
]
_PATTERN_TEXTS: TomlTable = {name: text for table in RULE_TABLES for name, text in table.get("texts", {}).items()}


def _filled_pattern(told: str | list[str]) -> str:
    """The pattern with each `{{name}}` replaced by its text."""
    return _TEXT_REFERENCE.sub(
        lambda named: (
            _xid_pattern(named[2].split()) if named[1] == "xid" else _filled_pattern(_PATTERN_TEXTS[named[1]])
        ),
        joined_alternatives(told),
    )


def _xid_pattern(which: Iterable[str]) -> str:
    """The pattern of a line with one of these Xids, given as numbers and causes; neither: any number."""
    which = frozenset(which)
    given = {int(one) for one in which if one.isdecimal()}
    numbers = given | {number for number, cause in CAUSE_BY_XID.items() if cause in which}
    told = "|".join(map(str, sorted(numbers))) or r"\d+"
    number = rf"(?P<xid>{told})\b(?!, \w+ Nonfatal\b)"
    return rf"{XID_PREFIX}(?: \([^)]*\))?(?: (?:error|event|code))?[:=]? *{CAUSED_BY_XID}{number}"


def _make_sign(told: TomlTable) -> Sign:
    pattern = _filled_pattern(told["pattern"]) if "pattern" in told else None
    return Sign(**{**told, "keys": joined_alternatives(told["keys"]), "pattern": pattern})


def _make_rule(told: TomlTable) -> Rule:
    signs = tuple(
        one if isinstance(one, str) else _make_sign(one) if "keys" in one else one["name"] for one in told["signs"]
    )
    others = {name: tuple(told.get(name, ())) for name in ("needs", "unless")}
    return Rule(**{**told, **others, "signs": signs, "tier": Tier[told.get("tier", "FAULT")]})


RULES: tuple[Rule, ...] = tuple(_make_rule(rule) for table in RULE_TABLES for rule in table["rules"])
SIGNS: tuple[Sign, ...] = (
    *(_make_sign(sign) for table in RULE_TABLES for sign in table.get("signs", ())),
    *(sign for rule in RULES for sign in rule.signs if isinstance(sign, Sign)),
)

CATALOGUE = Catalogue(SIGNS)


def make_scanner(limits: ScanLimits = DEFAULT_SCAN_LIMITS) -> Scanner:
    """A scanner that knows every sign."""
    return Scanner(CATALOGUE, limits)
