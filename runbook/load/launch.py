"""The `launch:` of an inventory as a playbook: what has to work for any job, then that launch.

So an inventory with a launch is all that a job needs, and there is still one way to plan, render, lint and run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from runbook.load.document import Document, Keys
from runbook.load.playbook import ExaminedPlaybook, examine_playbook
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.playbook import Playbook

CHECKS_FIRST = ("ping", "port", "firewall", "ibstat", "connection")
"""The checks before the launch, by id, in order."""


def has_launch(document: Document) -> bool:
    """Whether this is an inventory with a launch of its own."""
    return isinstance(document.data, dict) and "nodes" in document.data and "launch" in document.data


def examine_launch(
    document: Document, *, checks: Collection[str] | None = None, environ: Mapping[str, str] | None = None
) -> ExaminedPlaybook:
    """As `examine_playbook`, of the launch in an inventory; every place is one of the inventory's file.

    `document` is one that `has_launch`. What is wrong elsewhere in it is the inventory's to tell.
    """
    return examine_playbook(launch_document(document), checks=checks, environ=environ)


def load_launch(
    document: Document, *, checks: Collection[str] | None = None, environ: Mapping[str, str] | None = None
) -> Playbook:
    """The playbook of an inventory's launch. Raises FilesWrong with every problem, and where there is no launch."""
    if not has_launch(document):
        message = f"{document.path} has no `launch:`, and no playbook is named"
        help = f"runbook run PLAYBOOK -i {document.path}, or add a `launch:` with a `command:` to it"
        raise FilesWrong([*document.problems, Problem("arguments.no-playbook", message, help=help)])
    examined = examine_launch(document, checks=checks, environ=environ)
    if examined.playbook is None:
        raise FilesWrong(list(examined.problems))
    return examined.playbook


def launch_document(document: Document) -> Document:
    """The playbook as a document whose values stand where they stand in the inventory."""
    data: Any = document.data
    stages: list[dict[str, Any]] = [{"check": check} for check in CHECKS_FIRST]
    stages.append({"launch": data["launch"]})
    top: dict[str, Any] = {"stages": stages}
    if isinstance(data.get("name"), str) and data["name"]:
        top = {"name": data["name"], **top}
    here: Keys = ("stages", len(CHECKS_FIRST), "launch")

    def moved(places: Mapping[Keys, Span]) -> dict[Keys, Span]:
        return {(*here, *keys[1:]): places[keys] for keys in places if keys[:1] == ("launch",)}

    def texts() -> dict[Keys, str]:
        return {(*here, *keys[1:]): text for keys, text in document.texts.items() if keys[:1] == ("launch",)}

    launch = document.key_span("launch")
    spans = moved(document.spans)
    if launch is not None:  # the checks and the list stand nowhere: what is said of them is said at `launch:`
        spans |= {(): launch, ("stages",): launch, here[:-1]: launch}
        spans |= {("stages", index): launch for index in range(len(CHECKS_FIRST))}
    return Document(document.path, document.text, top, spans, moved(document.key_spans), texts())
