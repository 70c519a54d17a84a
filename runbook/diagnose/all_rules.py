"""The signs and rules of all families, read from `rules/FAMILY.toml`.

A family's file has `[[rules]]`, fields of a Rule, each with its signs: their names (`signs = [...]`), or the signs
themselves (`[[rules.signs]]`, fields of a Sign; one without `keys` stands elsewhere). `[[signs]]` are those of no
single rule. `keys`, `pattern` and the texts below may be lists: alternatives, joined by `|` whatever they are cut at.
What a rule `says` has holes for groups of its signs: `{port}`, or `{late|a rank}` with words for what no line names.

In a pattern, `{{name}}` is a text of `[texts]`, of whatever family, and `{{xid 63 gpu-fell-off-bus}}` a line of the
kernel with one of these Xid numbers: those given, and those that prove these causes, or `{{xid any}}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from runbook.diagnose.kept_lines import LIMITS, ScanLimits
from runbook.diagnose.rule_types import Rule, Sign, Tier, joined
from runbook.diagnose.scan import Catalogue, Scanner
from runbook.files.shipped_files import own_table
from runbook.parsers.nvidia_logs import BECAUSE_OF, CAUSE_OF

FAMILIES = (
    *("reaching", "slurm", "addresses", "sockets", "interfaces", "rendezvous", "ranks", "program", "builds"),
    *("accelerators", "containers", "rdma", "nccl", "ncclras", "unexplained"),
)
XID = r"(?:(?-i:\bX[Ii][Dd]\b)|\b(?:GPU|NVRM)\b.{0,40}\bxid\b)"
"""The driver's word; in small letters it is also what databases call a transaction."""
_NAMED = re.compile(r"\{\{(\w+)((?: [\w-]+)*)\}\}")

Table = Mapping[str, Any]


TABLES: list[Table] = [own_table("runbook.diagnose", "rules", f"{family}.toml") for family in FAMILIES]
_TEXTS: Table = {name: text for table in TABLES for name, text in table.get("texts", {}).items()}


def _filled(told: str | list[str]) -> str:
    """The pattern with what its names stand for."""
    return _NAMED.sub(
        lambda named: _xid(named[2].split()) if named[1] == "xid" else _filled(_TEXTS[named[1]]), joined(told)
    )


def _xid(which: Iterable[str]) -> str:
    which = frozenset(which)
    given = {int(one) for one in which if one.isdecimal()}
    numbers = given | {number for number, cause in CAUSE_OF.items() if cause in which}
    told = "|".join(map(str, sorted(numbers))) or r"\d+"
    return rf"{XID}(?: \([^)]*\))?(?: (?:error|event|code))?[:=]? *{BECAUSE_OF}(?P<xid>{told})\b(?!, \w+ Nonfatal\b)"


def _sign(told: Table) -> Sign:
    pattern = _filled(told["pattern"]) if "pattern" in told else None
    return Sign(**{**told, "keys": joined(told["keys"]), "pattern": pattern})


def _rule(told: Table) -> Rule:
    signs = tuple(
        one if isinstance(one, str) else _sign(one) if "keys" in one else one["name"] for one in told["signs"]
    )
    others = {name: tuple(told.get(name, ())) for name in ("needs", "unless")}
    return Rule(**{**told, **others, "signs": signs, "tier": Tier[told.get("tier", "FAULT")]})


RULES: tuple[Rule, ...] = tuple(_rule(rule) for table in TABLES for rule in table["rules"])
SIGNS: tuple[Sign, ...] = (
    *(_sign(sign) for table in TABLES for sign in table.get("signs", ())),
    *(sign for rule in RULES for sign in rule.signs if isinstance(sign, Sign)),
)

CATALOGUE = Catalogue(SIGNS)


def scanner(limits: ScanLimits = LIMITS) -> Scanner:
    """A scanner that knows every sign."""
    return Scanner(CATALOGUE, limits)
