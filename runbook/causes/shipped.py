"""The pages of the causes, as they are shipped."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources

from runbook.causes.page import CausePage, parse_pages


@functools.cache
def cause_pages() -> Mapping[str, CausePage]:
    """Every cause's page by its id."""
    pages: dict[str, CausePage] = {}
    for file in resources.files("runbook.causes").joinpath("pages").iterdir():
        if file.name.endswith(".md"):
            pages.update(parse_pages(file.read_text(encoding="utf-8")))
    return pages


def page_text(cause: str) -> str:
    """The page of a cause as `explain` prints it; empty when it has none."""
    page = cause_pages().get(cause)
    if page is None:
        return ""
    return f"\nsymptom: {page.symptom}\nwhy:     {page.why}\nconfirm: {page.confirm}\nremedy:  {page.remedy}\n"
