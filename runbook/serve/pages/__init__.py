"""The pages of the server. Each file has a subject: handlers, and at its end their rows of the table (`PAGES`). A new
file has to be added here."""

from __future__ import annotations

from runbook.serve.page import Page
from runbook.serve.pages import admin, agents, assets_and_health, groups, login, logs, nodes, runs


def all_pages() -> list[Page]:
    """The whole table of pages."""
    return [
        *nodes.PAGES,
        *groups.PAGES,
        *runs.PAGES,
        *logs.PAGES,
        *login.PAGES,
        *admin.PAGES,
        *agents.PAGES,
        *assets_and_health.PAGES,
    ]
