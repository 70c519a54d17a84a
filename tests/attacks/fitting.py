"""Values at the edges of what the description of an answer allows, put into answers that were recorded: what passes the
boundary whole, and is to be judged."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from runbook.checks.ranks.pool import RANK_MESSAGES
from runbook.transport.node_answers import (
    ANSWER_TYPES,
    FIREWALL_RULES_MESSAGES,
    KEEPER_MESSAGES,
    MESH_MESSAGES,
    Address,
    Flight,
    Hello,
    Prefix,
    Tabled,
)

Json = Any

MESSAGES = {
    "mesh": MESH_MESSAGES,
    "firewall_rules": FIREWALL_RULES_MESSAGES,
    "keeper": KEEPER_MESSAGES,
    "rank": RANK_MESSAGES,
}
TOLD = {
    "event",
    "step",
    "peer",
    "address",
    "job",
    "node",
    "name",
    "attempt",
    "world_size",
    "rank",
    "source",
    "destination",
}
"""What an answer is known by: another value is another answer, which nobody asked for."""

DIGITS = "9" * 4500
"""More than Python turns into a number."""
NUMBERS = ("0", "-1", DIGITS, "²", "٣", "nan", "inf", "1e999", "1.2.3", "0x", "0x" + "f" * 400, "", ":", "4294967296")
TEXTS = (
    *("", " ", "x", "²", "0", "00", "9" * 10, "-1", "-" * 300, "x" * 4096, "9" * 4096, "a b", "a\nb", "a=b", "[]", "[0,", "{}", "7"),
    *("nan", "inf", "1e999", "0x", "1-", "-1-", "::", "fe80::1%eth0", "10.0.0.1:", ":::", "%s%d{}{0}", "\\", "'", "\0", "\x1b[2J", "…", "\ud7ff", "("),
    *("2.0", "2.0+cu", "1.2.3.4.5", "GPU-", "/", "/x", "../x", "~", "T", "D", "S", "ENOSPC", "EACCES", "missing", "ok", "UP", "open"),
    *("3.8.0", "0000.0.0", "0" * 64, "700", "attempt-01", "attempt-9999999"),
)  # fmt: skip
INTEGERS = (-(1 << 62), -1, 0, 1, 2, 29500, 65535, 1 << 31, 1 << 32, 1 << 62)
FLOATS = (-1e300, -1e12, 0.0, 5e-324, 1e-9, 1.0, 1e12, 1e300)
ANYTHING: tuple[Json, ...] = (
    *(None, True, False, 0, 1, 3, 1 << 31, (1 << 63) - 1, 0.0, 1e11, 1e7, "", "x", "ended", "running", "waiting", "signal 9", "barrier: the shared folder"),
    *([], [0], [1, 1], [10_000_000], ["x"], {}, {"node-a": [0]}, {"x": None}),
)  # fmt: skip
ADDRESSES = (
    "0.0.0.0",
    "127.0.0.1",
    "255.255.255.255",
    "10.77.0.1",
    "::",
    "::1",
    "fe80::1%eth0",
    "::ffff:127.0.0.1",
    "ff02::1",
)


def described(program: str, said: Json) -> Any:
    """The description that something said has to fit; None where there is none."""
    if program in MESSAGES:
        by_event = MESSAGES[program].described
        event, step = said.get("event", ""), said.get("step", "")
        return by_event.get(f"{event} {step}") or by_event.get(event)
    return {**ANSWER_TYPES, "hello": Hello}.get(program)


class Fitting:
    """What this program says, in which every value is another one that fits with this `chance`; what others say stays."""

    def __init__(self, whose: str, seed: object, chance: float) -> None:
        self._whose = whose
        self._chance = random.Random(str(seed))
        self._often = chance

    def __call__(self, program: str, said: Json) -> Json:
        if program != self._whose:
            return said
        if program.startswith("read ") and isinstance(said, str):
            return self._read(said)
        kind = described(program, said) if isinstance(said, dict) else None
        return said if kind is None else self._varied(inspect.type_info(kind), said)

    def _read(self, text: str) -> str:
        try:
            return json.dumps(self._varied(inspect.type_info(Flight), json.loads(text)))
        except ValueError:
            return str(self._of_text(text))

    def _now(self) -> bool:
        return self._chance.random() < self._often

    def _varied(self, kind: inspect.Type, value: Json) -> Json:
        if isinstance(kind, inspect.UnionType):
            others = [one for one in kind.types if not _is(one, value)]
            if others and self._now():
                return self._made(self._chance.choice(others))
            return next((self._varied(one, value) for one in kind.types if _is(one, value)), value)
        if isinstance(kind, inspect.TypedDictType) and isinstance(value, dict):
            known = {field.encode_name for field in kind.fields}
            beside = {name: one for name, one in value.items() if name not in known}
            return beside | dict(self._fields(kind, value))
        if isinstance(kind, inspect.DictType) and isinstance(value, dict):
            return {key: self._varied(kind.value_type, one) for key, one in value.items()}
        if isinstance(kind, inspect.ListType) and isinstance(value, list):
            return self._list(kind, value)
        if isinstance(kind, inspect.TupleType) and isinstance(value, list):
            return [self._varied(one, each) for one, each in zip(kind.item_types, value, strict=True)]
        if isinstance(kind, inspect.CustomType) and issubclass(kind.cls, Tabled):
            return self._tabled(kind.cls, value)
        return self._chance.choice(list(_edges(kind, value)) or [value]) if self._now() else value

    def _fields(self, kind: inspect.TypedDictType, value: dict[str, Json]) -> Iterator[tuple[str, Json]]:
        for field in kind.fields:
            name = field.encode_name
            if name in TOLD and name in value:
                yield name, value[name]
            elif name in value:
                if field.required or not self._now():
                    yield name, self._varied(field.type, value[name])
            elif not field.required and self._now():
                yield name, self._made(field.type)

    def _list(self, kind: inspect.ListType, value: list[Json]) -> list[Json]:
        items = [self._varied(kind.item_type, one) for one in value]
        if not self._now():
            return items
        made = self._made(kind.item_type)
        most = kind.max_length or 40
        return self._chance.choice([[], [made], items[:1], [*items, made], items[::-1], (items or [made]) * 20])[:most]

    def _tabled(self, table: type[Tabled], value: dict[str, Json]) -> dict[str, Json]:
        found = dict(value)
        for field, (_, fits) in table.kinds.items():
            if field not in TOLD and field not in ("ranks", "each") and self._now():
                if field not in table.needed and self._now():
                    found.pop(field, None)
                else:
                    found[field] = self._chance.choice([one for one in ANYTHING if fits(one)] or [value.get(field)])
        return found

    def _made(self, kind: inspect.Type) -> Json:
        """Something that fits, out of nothing."""
        if isinstance(kind, inspect.UnionType):
            return self._made(self._chance.choice(kind.types))
        if isinstance(kind, inspect.TypedDictType):
            return {one.encode_name: self._made(one.type) for one in kind.fields if one.required or self._now()}
        if isinstance(kind, inspect.ListType):
            return [self._made(kind.item_type)] * self._chance.choice([0, 1, 3])
        if isinstance(kind, inspect.TupleType):
            return [self._made(one) for one in kind.item_types]
        if isinstance(kind, inspect.DictType):
            return {}
        if isinstance(kind, inspect.CustomType) and issubclass(kind.cls, Tabled):
            kinds = {
                field: fits for field, (_, fits) in kind.cls.kinds.items() if field in kind.cls.needed or self._now()
            }
            return {field: self._chance.choice([one for one in ANYTHING if fits(one)]) for field, fits in kinds.items()}
        return self._chance.choice(list(_edges(kind, None)))

    def _of_text(self, text: str) -> Json:
        return self._chance.choice(list(texts(text)))


def _is(kind: inspect.Type, value: Json) -> bool:
    types: dict[type[inspect.Type], tuple[type, ...]] = {
        inspect.NoneType: (type(None),),
        inspect.BoolType: (bool,),
        inspect.IntType: (int,),
        inspect.FloatType: (int, float),
        inspect.StrType: (str,),
        inspect.LiteralType: (str,),
        inspect.ListType: (list,),
        inspect.DictType: (dict,),
        inspect.TypedDictType: (dict,),
        inspect.CustomType: (str, dict),
    }
    return type(value) in types.get(type(kind), ())


def _edges(kind: inspect.Type, value: Json) -> Iterator[Json]:
    """Values that fit; `value` is one."""
    if isinstance(kind, (inspect.IntType, inspect.FloatType)):
        for number in (*INTEGERS, kind.ge, kind.le) if isinstance(kind, inspect.IntType) else FLOATS:
            if number is not None and (kind.ge is None or number >= kind.ge) and (kind.le is None or number <= kind.le):
                yield number
    elif isinstance(kind, inspect.StrType):
        for text in (*TEXTS, *(texts(value) if value else ())):
            if len(text) <= (kind.max_length or len(text)) and (not kind.pattern or re.search(kind.pattern, text)):
                yield text
        if kind.pattern and value is not None:
            yield value
    elif isinstance(kind, inspect.LiteralType):
        yield from kind.values
    elif isinstance(kind, inspect.BoolType):
        yield from (True, False)
    elif isinstance(kind, inspect.NoneType):
        yield None
    elif isinstance(kind, inspect.BytesType):
        yield from ("", "AAAA")
    elif isinstance(kind, inspect.CustomType) and kind.cls in (Address, Prefix):
        yield from (
            address + "/0" * (kind.cls is Prefix) for address in ADDRESSES if kind.cls is Address or "%" not in address
        )


def texts(text: str) -> Iterator[str]:
    """What a tool or a file says, with numbers that are none, cut, and twice."""
    for number in NUMBERS:
        yield re.sub(r"\d+", lambda _: number, text)  # noqa: B023
        yield re.sub(r"(?<![0-9A-Za-z])\d+(?![0-9A-Za-z])", lambda _: number, text, count=3)  # noqa: B023
    yield text[: len(text) // 2]
    yield text + text
    yield text.replace(" ", "  ").replace(",", ";")
    yield "\n".join(reversed(text.split("\n")))
    yield text.replace("\n", " ")
    yield re.sub(r"[A-Za-z]{3,}", "x", text)
