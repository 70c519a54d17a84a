"""Reads the JSON of `nft -j -a list ruleset` as base chains to walk. Contract: libnftables-json(5), schema version 1.

Conditions that nft itself leaves out cannot be seen: 1.0.6 prints `meta nfproto ipv6 … reject with tcp reset` without
its first condition, in text and in JSON, and `tcp sport >= 1024 tcp dport <= 5` as the range 1024-5 (which is read as
unknown).

Statements that neither decide nor change a packet for later rules (counter, log, …) are passed over; an unknown
statement makes its rule's match unknown, so that it never counts as passed.
"""

from __future__ import annotations

import json
import re

from runbook.firewall.evaluate import (
    NOTRACK,
    Action,
    Base,
    FilterRule,
    Match,
    Packet,
    RuleStep,
    RuleVerdict,
    StateChange,
    Truth,
    VerdictMap,
    normal_address,
)
from runbook.firewall.nft_match import (
    MALFORMED_JSON_ERRORS,
    NOT_THERE,
    Json,
    NamedSets,
    SetsByName,
    element_holds,
    match_cost,
    match_test,
    parse_operands,
    set_elements,
)
from runbook.model.units import parse_number

TableName = tuple[str, str]  # family, name
NEUTRAL_STATEMENTS = frozenset(
    ("counter", "log", "comment", "last", "flow", "dup", "secmark", "ct helper", "ct timeout", "ct expectation")
)
VERDICTS = {
    "accept": RuleVerdict("accept"),
    "drop": RuleVerdict("drop"),
    "return": RuleVerdict("return"),
    "continue": RuleVerdict("continue"),
}
REWRITES = frozenset({"snat", "dnat", "masquerade", "redirect"})
DIVERTING_STATEMENTS = frozenset({"queue", "synproxy", "tproxy", "fwd"})
"""Statements that leave the decision to another program or device."""
PRIORITIES = {"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}


class UnreadableRulesetError(ValueError):
    """The text is not a ruleset in nft's JSON."""


def parse(text: str, rule_texts: str = "") -> list[Base]:
    """Every base chain of the ruleset, sorted as the kernel runs the chains of one hook. Raises UnreadableRulesetError.

    `rule_texts` is the text of `nft -a list ruleset`: it gives the rules the form that an administrator knows.
    """
    try:
        items = json.loads(text)["nftables"]
        return _Ruleset(items, rule_texts).bases()
    except MALFORMED_JSON_ERRORS as error:
        raise UnreadableRulesetError(f"{type(error).__name__}: {error}") from error


def texts_by_handle(listing: str) -> dict[tuple[str, str, int], str]:
    """(family, table, rule handle) -> the rule as `nft -a list ruleset` prints it. Handles are unique in a table."""
    texts: dict[tuple[str, str, int], str] = {}
    family = table = ""
    in_chain = False
    held = ""
    for line in listing.splitlines():
        if opened := re.match(r"table (\S+) (\S+) \{", line):
            family, table = opened.groups()
        elif re.match(r"\t(chain|set|map|flowtable|counter|limit|quota|ct \w+|synproxy|secmark) ", line):
            in_chain = line.startswith("\tchain ")
            held = ""
        elif in_chain and line.startswith("\t\t"):
            rule = re.fullmatch(r"(.*\S)\s+# handle (\d+)", held + line.strip())
            if rule:
                texts[family, table, parse_number(rule[2])] = " ".join(rule[1].split())
            held = "" if rule or line.strip().startswith("type ") else held + line.strip() + " "
    return texts


def devices_by_chain(listing: str) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """(family, table, chain) -> the devices of an ingress or egress chain, which nft 1.0 leaves out of its JSON."""
    found: dict[tuple[str, str, str], tuple[str, ...]] = {}
    family = table = chain = ""
    for line in listing.splitlines():
        if opened := re.match(r"table (\S+) (\S+) \{", line):
            family, table = opened.groups()
        elif opened := re.match(r"\tchain (\S+) \{", line):
            chain = opened[1]
        elif line.startswith("\t\ttype ") and " device" in line:
            before_priority = line.split(" device", 1)[1].split(" priority", 1)[0]
            found[family, table, chain] = tuple(re.findall(r"[^\s\"{},=]+", before_priority.removeprefix("s")))
    return found


class _Ruleset:
    """A ruleset while its JSON is read; `listing` is the same ruleset as text."""

    def __init__(self, items: list[Json], listing: str) -> None:
        self._texts = texts_by_handle(listing)
        self._devices = devices_by_chain(listing)
        self._sets: dict[TableName, NamedSets] = {}
        self._rules: dict[TableName, dict[str, list[FilterRule]]] = {}
        self._chains: list[tuple[Json, int]] = []
        tables: dict[TableName, int] = {}
        for item in items:
            ((kind, body),) = item.items()
            _check_names(body)
            if kind == "table":
                tables[body["family"], body["name"]] = body.get("handle", 0)
            elif kind in ("set", "map"):
                self._sets.setdefault((body["family"], body["table"]), NamedSets())[body["name"]] = body
            elif kind == "chain":
                key = (body["family"], body["table"])
                self._rules.setdefault(key, {}).setdefault(body["name"], [])
                if "hook" in body:
                    self._chains.append((body, tables.get(key, 0)))
        for item in items:
            if "rule" in item:
                self._add(item["rule"])

    def _add(self, body: Json) -> None:
        key = (body["family"], body["table"])
        chain = self._rules[key].setdefault(body["chain"], [])
        handle = body.get("handle")
        text = self._texts.get((*key, handle)) or rule_as_json(body.get("expr", []))
        steps = tuple(_rule_steps(body.get("expr", []), self._sets.get(key, {})))
        chain.append(
            FilterRule(body["chain"], len(chain), text, steps, handle, _uses_random_numbers(body.get("expr", [])))
        )

    def bases(self) -> list[Base]:
        found = []
        for body, table_handle in self._chains:
            policy: Action = "drop" if body.get("policy") == "drop" else "accept"
            chains = {name: tuple(rules) for name, rules in self._rules[body["family"], body["table"]].items()}
            devices = body.get("dev") or self._devices.get((body["family"], body["table"], body["name"]), ())
            found.append(
                Base(
                    engine="nft",
                    family=body["family"],
                    table=body["table"],
                    chain=body["name"],
                    hook=body["hook"],
                    priority=_chain_priority(body.get("prio", 0)),
                    policy=policy,
                    chains=chains,
                    kind=body.get("type", "filter"),
                    devices=(devices,) if isinstance(devices, str) else tuple(devices),
                    order=-table_handle,  # of equal priorities, the one registered last runs first
                )
            )
        return sorted(found, key=lambda base: (base.priority, base.order))


def _check_names(body: Json) -> None:
    """Raises TypeError if a name in the object is not a text, or its handle is not a number."""
    names = [body.get(key, "") for key in ("family", "table", "chain", "name", "hook")]
    if not all(isinstance(name, str) for name in names) or not isinstance(body.get("handle", 0), int):
        raise TypeError("a name that is none")


def _chain_priority(value: Json) -> int:
    """A chain's priority as a number: from a number, a name such as `filter`, or a name with an offset."""
    if isinstance(value, int):
        return value
    if isinstance(value, dict):
        ((sign, (name, offset)),) = value.items()
        return PRIORITIES[str(name)] + int(offset) * (1 if sign == "+" else -1)
    return PRIORITIES[str(value)]


def _rule_steps(expressions: list[Json], sets: SetsByName) -> list[RuleStep]:
    steps: list[RuleStep] = []
    for expression in expressions:
        step = _rule_step(expression, sets)
        if step is not None:
            steps.append(step)
    return steps


def _rule_step(expression: Json, sets: SetsByName) -> RuleStep | None:
    """The step for one statement of a rule; None for a statement that is passed over."""
    if isinstance(expression, str):
        return None if expression in NEUTRAL_STATEMENTS else Match(_undecided_test)
    ((name, body),) = expression.items()
    if name == "match":
        return Match(match_test(body, sets), match_cost(body, sets))
    if name in VERDICTS:
        return VERDICTS[name]
    if name in ("jump", "goto"):
        return RuleVerdict("jump" if name == "jump" else "goto", str(body["target"]))
    if name == "reject":
        return RuleVerdict("reject-rst" if (body or {}).get("type") == "tcp reset" else "reject-icmp")
    if name == "vmap":
        return _verdict_map_step(body, sets)
    if name == "mangle":
        return _state_change_step(body)
    if name == "notrack":
        return NOTRACK
    if name in REWRITES:
        return RuleVerdict("rewrite", normal_address((body or {}).get("addr")) if name == "snat" else "")
    if name in DIVERTING_STATEMENTS:
        return RuleVerdict("unknown")
    if name == "set":
        return Match(_undecided_test) if body.get("stmt") else None
    return None if name in NEUTRAL_STATEMENTS else Match(_undecided_test)


def _uses_random_numbers(expression: Json) -> bool:
    """Whether a rule's expression uses a number generator anywhere, so that it matches by count or by chance."""
    if isinstance(expression, dict):
        return "numgen" in expression or any(map(_uses_random_numbers, expression.values()))
    return isinstance(expression, list) and any(map(_uses_random_numbers, expression))


def _undecided_test(_: Packet) -> Truth:
    return None


def _state_change_step(body: Json) -> RuleStep | None:
    """The step for a statement that sets a mark or the like; None if no rule reads the value that it sets."""
    key, value = body.get("key", {}), body.get("value")
    number = value if isinstance(value, int) else None
    if key == {"meta": {"key": "mark"}}:
        return StateChange("mark", number)
    if key == {"ct": {"key": "mark"}}:
        return StateChange("ct_mark", number)
    if isinstance(key, dict) and set(key) <= {"meta", "ct", "tcp option"}:
        return None  # priority, zone, MSS: no later rule here reads them
    return Match(_undecided_test)


def _verdict_map_step(body: Json, sets: SetsByName) -> RuleStep:
    """The step for a verdict map."""
    left = parse_operands(body["key"])
    elements = set_elements(body["data"], sets)
    if elements is None:
        return RuleVerdict("unknown")

    def options(packet: Packet) -> list[tuple[Truth, RuleVerdict]]:
        try:
            return chosen(packet)
        except MALFORMED_JSON_ERRORS:
            return [(None, RuleVerdict("unknown"))]

    def chosen(packet: Packet) -> list[tuple[Truth, RuleVerdict]]:
        values = [operand.read(packet) for operand in left]
        if any(value is NOT_THERE for value in values):
            return []
        possible: list[tuple[Truth, RuleVerdict]] = []
        fallback: list[tuple[Truth, RuleVerdict]] = []
        for key, verdict in elements:
            step = _rule_step(verdict, sets)
            decided = step if isinstance(step, RuleVerdict) else RuleVerdict("unknown")
            if key == "*" or (isinstance(key, dict) and key.get("elem", {}).get("val") == "*"):
                fallback.append((True, decided))
                continue
            truth = element_holds(left, values, key)
            if truth is True:
                return [*possible, (True, decided)]
            if truth is None:
                possible.append((None, decided))
        return possible + fallback

    return VerdictMap(options, len(elements))


def rule_as_json(expressions: list[Json]) -> str:
    """A rule as short JSON, for use without nft's own text."""
    return json.dumps(expressions, separators=(",", ":"))
