"""A megabyte of long lines without spaces costs `diagnose` about as much as any other megabyte."""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable

import pytest

from runbook.diagnose.all_rules import RULES, SIGNS, make_scanner
from runbook.diagnose.judge import judge_logs
from runbook.diagnose.rule_types import Sign

pytestmark = pytest.mark.cost

CHANCE = random.Random(7)
SIZE = 1_000_000
MOST = 8
"""Times the CPU that a megabyte of base64 takes beside it; unbounded, these took up to twenty times as much."""
KEYS = [
    key
    for sign in (*SIGNS, *(sign for rule in RULES for sign in rule.signs if isinstance(sign, Sign)))
    for key in sign.literals
]


def of(parts: list[str], between: str = "") -> str:
    text = ""
    while len(text) < 1990:
        text += CHANCE.choice(parts) + between
    return text[:1990]


LINES: dict[str, Callable[[], str]] = {
    "base64": lambda: base64.b64encode(CHANCE.randbytes(1490)).decode(),
    "hex": lambda: "error:" + CHANCE.randbytes(990).hex(),
    "equals signs": lambda: "error" + "=" * CHANCE.randint(1900, 1990),
    "colons": lambda: "error:" + ":" * CHANCE.randint(1900, 1990),
    "equals signs and colons": lambda: of(["=", ":"]) + "error",
    "dots": lambda: "error" + of(["a", "."]),
    "words run together": lambda: of(
        ["error", "=", ":", "0", "a.", "warning", "Exception", "rank", "/", "_", "[", "12"]
    ),
    "keys and values": lambda: of([f"{word}{mark}" for word in ("error", "nccl", "failed", "cuda") for mark in "=:,;"]),
    "every literal, run together": lambda: of(KEYS),
    "every literal": lambda: of(KEYS, "="),
}


def cost(text: str) -> float:
    """Seconds of CPU."""
    scan = make_scanner()
    start = time.thread_time()
    scan.feed("job.log", [text.encode()])
    judge_logs(scan)
    return time.thread_time() - start


def lines_of(kind: str) -> str:
    return "\n".join(LINES[kind]() for _ in range(SIZE // 1990))


def is_cheap(text: str) -> bool:
    cost(text[: SIZE // 10])  # patterns are compiled when they are needed first
    return cost(text) < MOST * cost(lines_of("base64"))


@pytest.mark.parametrize("kind", LINES)
def test_lines_without_spaces(kind: str) -> None:
    assert is_cheap(lines_of(kind))


def test_one_line() -> None:
    assert is_cheap("=".join(CHANCE.choice(KEYS) for _ in range(SIZE // 12))[:SIZE])
