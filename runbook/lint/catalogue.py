"""Every rule there is, read from its page: the pages are the catalogue, and nothing else repeats what they say.

`pages/FAMILY.md` has a section `## RULE-ID` for each rule. Its first line is `*error*. One sentence.` or
`*warning*. One sentence.`; `*error, always*.` marks what keeps a file from being used and cannot be silenced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_HEADING = re.compile(r"^## (?=\S)", re.MULTILINE)
_FIRST_LINE = re.compile(r"\*(?P<severity>error|warning)(?P<always>, always)?\*\. (?P<summary>\S.*)")


@dataclass(frozen=True, slots=True)
class LintRule:
    """`text` is the whole section in Markdown, without its heading. With `always` nothing can silence it."""

    id: str
    severity: str  # error | warning
    always: bool
    summary: str
    text: str


@cache
def rules() -> Mapping[str, LintRule]:
    """By id, family by family, in the order of the pages."""
    pages = resources.files("runbook.lint").joinpath("pages")
    found: dict[str, LintRule] = {}
    for page in sorted(pages.iterdir(), key=lambda page: page.name):
        if page.name.endswith(".md"):
            for rule in read_page(page.read_text(encoding="utf-8")):
                if rule.id in found:
                    raise ValueError(f"{page.name}: `{rule.id}` has a section already")
                found[rule.id] = rule
    return found


def read_page(text: str) -> Iterator[LintRule]:
    """The rules of one page. Raises ValueError where a section does not begin as it should."""
    for section in _HEADING.split(text)[1:]:
        id, _, body = section.partition("\n")
        first = _FIRST_LINE.match(body.strip())
        if first is None:
            raise ValueError(f"the section of `{id}` does not begin with `*error*. …` or `*warning*. …`")
        yield LintRule(id.strip(), first["severity"], first["always"] is not None, first["summary"], body.strip())
