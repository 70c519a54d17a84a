"""Words of the trade: what stands in our own pages, programs and schemas is a word first, and perhaps somebody's login."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_WORDS = (re.compile(r"[a-z][a-z0-9]+"), re.compile(r"[a-z]{2,}"))
_ENDINGS = (".md", ".py", ".j2", ".txt")
ORDINARY = frozenset(
    re.findall(
        r"\S+",
        """data dataset datasets model models home homes scratch tmp temp common team lib src app apps opt build builds
    trainer checkpoint checkpoints project projects share public guest work workspace software libs torch node
    nodes test tests admin user users gpu gpus local shared default logs jobs batch web mail ftp store media
    video audio photo game games""",
    )
)

_DEVICE = re.compile(r"(?:gpu|cpu|cuda|rank|mlx|ib|eth|eno|ens|bond|nvme|tty|pts)[0-9]+")


def is_word(name: str) -> bool:
    """Whether a name in small letters stands in every other text, also with a number behind it, as in `gpu7` or `worker3`."""
    return name.rstrip("0123456789") in words() or name in words()


def is_common(name: str) -> bool:
    """The same of a host's name, where a number tells hosts apart, but for those of devices: `gn7` is nothing else, `gpu7` is."""
    return name in words() if name.isalpha() else _DEVICE.fullmatch(name) is not None


@cache
def words() -> frozenset[str]:
    """In small letters. About fifty milliseconds, once."""
    found = set(ORDINARY)
    for text in _texts(resources.files("runbook")):
        found.update(*(pattern.findall(text.lower()) for pattern in _WORDS))
    return frozenset(found)


def _texts(folder: Traversable) -> Iterator[str]:
    for one in folder.iterdir():
        if one.is_dir() and one.name == "collect":
            continue  # its examples are of people
        if one.is_dir():
            yield from _texts(one)
        elif one.name.endswith(_ENDINGS):
            yield one.read_text(encoding="utf-8")
