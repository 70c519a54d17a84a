"""The page of a cause: symptom, why, how to confirm by hand, remedy; parsed from the pages of a family. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PARTS = ("symptom", "why", "confirm", "remedy")
PART = re.compile(r"^- (\w+): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CausePage:
    symptom: str
    why: str
    confirm: str
    remedy: str


def parse_pages(family: str) -> Mapping[str, CausePage]:
    """The pages in one family's text: a `## cause-id` each, and under it one line a part; ValueError when one lacks."""
    pages: dict[str, CausePage] = {}
    for section in family.split("\n## ")[1:]:
        name, _, body = section.partition("\n")
        parts = dict(PART.findall(body))
        if name in pages or tuple(parts) != PARTS:
            raise ValueError(f"the page of {name} needs {', '.join(PARTS)}, in this order and once")
        pages[name] = CausePage(**parts)
    return pages
