"""The pages of the server, a file a subject: its handlers, and at its end its rows of the table (`PAGES`). A new file
is added here."""

from __future__ import annotations

from runbook.serve.page import Page
from runbook.serve.pages import admin, agents, assets_and_health, groups, login, logs, nodes, runs


def all_pages() -> list[Page]:
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
