"""Gathers everything for one archive, from this machine, the run's folder and the nodes, and then scrubs all of it by
the same names."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from runbook.collect.archive import Absent, ArchiveFile, path_refusal
from runbook.collect.ask_nodes import NodeAnswer, ask_nodes
from runbook.collect.local_files import (
    CollectedRun,
    controller_entries,
    current_user_names,
    plan_for_scripts,
    run_entries,
    script_entries,
    source_entries,
)
from runbook.collect.scrub import REDACTED_TEXT, Scrubber
from runbook.files.environment_values import AnyVariable
from runbook.files.value_origins import Origins
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import Inventory, Node
from runbook.model.redact import inventory_secrets, is_searchable_secret

MAX_ARCHIVE_CHARACTERS = 64 * 1024 * 1024
"""The most characters of all texts together, before they are packed."""


@dataclass(slots=True)
class CollectRequest:
    """What is to be gathered. Without an inventory no node is asked; without a run the archive has no run's files."""

    inventory: Inventory | None
    origins: Origins | None
    inventory_path: Path | None
    nodes: Sequence[Node]
    run: CollectedRun | None
    command: Sequence[str]
    forks: int = 64
    hide_addresses: bool = False


@dataclass(slots=True)
class Gathered:
    """The scrubbed entries in the order of the archive, and how many secrets, people and mail addresses were found."""

    entries: list[ArchiveFile] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    nodes: list[NodeAnswer] = field(default_factory=list)
    secrets: int = 0
    people: int = 0
    mails: int = 0
    unsearched: dict[str, bool] = field(default_factory=dict)
    """By source, the secrets that cannot be searched for in the files: True for one that is set, and too short."""
    scrubber: Scrubber = field(default_factory=Scrubber)


def gather_entries(wanted: CollectRequest) -> Gathered:
    """Ask the nodes, read the files, scrub. Nothing is written. Missing things raise nothing: they become Absent."""
    began = wanted.run.started if wanted.run else None
    answers: list[NodeAnswer] = []
    if wanted.inventory:
        answers = ask_nodes(wanted.inventory, wanted.nodes, forks=wanted.forks, run_began=began)
    found: list[ArchiveFile | Absent] = [
        *controller_entries(wanted.command),
        *source_entries(wanted.inventory_path, wanted.run),
    ]
    if wanted.run:
        found += run_entries(wanted.run)
    else:
        found.append(Absent("run", "there is no run here yet"))
    secrets = inventory_secrets(wanted.inventory) if wanted.inventory else []
    if wanted.inventory and wanted.origins:
        names = frozenset(node.name for node in wanted.nodes)
        try:
            plan = plan_for_scripts(wanted.inventory, wanted.run.playbook if wanted.run else None, AnyVariable.here())
        except FilesWrong as wrong:
            found.append(Absent("scripts", f"they cannot be rendered: {wrong}", "failed"))
        else:
            secrets += plan.secrets
            found += script_entries(plan, wanted.origins, names)
    for answer in answers:
        found += [*sorted(answer.entries, key=lambda entry: entry.path), *answer.absent]
        if answer.failure is not None:
            found.append(Absent(f"nodes/{answer.node}", str(answer.failure), "not asked", answer.node))
    scrubber = Scrubber((secret.reveal() for secret in secrets), hide_addresses=wanted.hide_addresses)
    learn_names(scrubber, wanted, answers)
    gathered = scrub_entries(found, answers, scrubber)
    gathered.unsearched = {one.source: bool(one.reveal()) for one in secrets if not is_searchable_secret(one.reveal())}
    return gathered


def learn_names(scrubber: Scrubber, wanted: CollectRequest, answers: Sequence[NodeAnswer]) -> None:
    """Teach the scrubber all known names of people, and of machines if they are to be hidden. The order is the same for
    every archive, so that pseudonyms are the same too."""
    login, home, full = current_user_names()
    scrubber.people.add(login, *_searchable_full_name(full), home=home)
    nodes = wanted.inventory.nodes if wanted.inventory else ()
    for node in nodes:
        scrubber.people.add(*([node.ssh.user] if node.ssh.user else []))
        scrubber.people.add(*(user for user, _ in _jump_hosts(node) if user))
        scrubber.people.add(*_configured_login(node))
    for answer in answers:
        for person in answer.people:
            scrubber.people.add(person[0], *_searchable_full_name(person[2]), home=person[1])
    if scrubber.machines is None:
        return
    names = [node.name for node in nodes]
    if not wanted.inventory and wanted.run:
        names += wanted.run.nodes
    for node in nodes:
        names += [node.address, node.ssh.host or "", *(host for _, host in _jump_hosts(node))]
    if wanted.inventory:
        names.append(wanted.inventory.rendezvous.address)
    names += [name for answer in answers for name in answer.hostnames]
    for name in [*names, socket.gethostname()]:
        scrubber.machines.add_name(name)


def _jump_hosts(node: Node) -> list[tuple[str, str]]:
    """The user, or "", and the host of each jump host on the way to a node."""
    found = []
    for hop in (node.ssh.jump or "").split(","):
        user, _, place = hop.strip().removeprefix("ssh://").strip("/").rpartition("@")
        named = place.partition(":")[0] if place.count(":") == 1 else place  # more colons: an IPv6 address
        found.append((user, place[1:].partition("]")[0] if place.startswith("[") else named))
    return found


def _searchable_full_name(text: str) -> list[str]:
    """The full name, as a list, if it has several words, as `Jane Doe`. A single word may be anything, such as the name
    of a service."""
    return [text] if " " in text.strip() and not any(char.isdigit() for char in text) else []


def _configured_login(node: Node) -> list[str]:
    """The user that ssh logs in as on this node by its own configuration, if the inventory names none."""
    if node.connection != "ssh" or node.ssh.user or node.windows:
        return []
    from runbook.transport.ssh_config import resolve_login

    with contextlib.suppress(Unreachable, OSError):
        return [resolve_login(node.ssh.host or node.address, node.ssh).user]
    return []


def scrub_entries(found: Iterable[ArchiveFile | Absent], answers: list[NodeAnswer], scrubber: Scrubber) -> Gathered:
    """The entries that may go into the archive, scrubbed. An entry is left out for a refused name, for lack of room, or
    if it cannot be searched."""
    gathered = Gathered(nodes=answers, scrubber=scrubber)
    entries: list[ArchiveFile] = []
    room = MAX_ARCHIVE_CHARACTERS
    for one in found:
        if isinstance(one, Absent):
            gathered.absent.append(one)
            continue
        if why := path_refusal(one.path):
            gathered.absent.append(Absent(scrubber.text(ascii(one.path)[:200]), why, "left out", one.node, one.command))
        elif len(one.text) > room:
            why = f"the archive holds {MAX_ARCHIVE_CHARACTERS >> 20} MiB already"
            gathered.absent.append(Absent(one.path, why, "left out", one.node, one.command))
        else:
            room -= len(one.text)
            entries.append(one)
            scrubber.learn(one.text)
    for absent in gathered.absent:
        scrubber.learn(absent.why)
    for entry in entries:
        try:
            gathered.entries.append(_scrub_entry(entry, scrubber))
        # A file that cannot be searched is left out; the others stay.
        except Exception as error:  # noqa: BLE001
            why = f"it could not be searched: {type(error).__name__}"
            gathered.absent.append(Absent(entry.path, why, "left out", entry.node, entry.command))
    gathered.absent = [
        replace(
            one,
            what=_scrub_path(one.what, scrubber),
            why=scrubber.text(one.why),
            node=_scrub_optional_text(one.node, scrubber),
            command=_scrub_optional_text(one.command, scrubber),
        )
        for one in gathered.absent
    ]
    gathered.secrets = scrubber.secrets_found
    gathered.people, gathered.mails = len(set(scrubber.people.names)), scrubber.people.mails
    return gathered


def _scrub_optional_text(text: str | None, scrubber: Scrubber) -> str | None:
    return None if text is None else scrubber.text(text)


def _scrub_entry(entry: ArchiveFile, scrubber: Scrubber) -> ArchiveFile:
    """An entry with its path, text, command and trouble scrubbed; the text is scrubbed by its form."""
    if entry.form == "json":
        text = scrubber.json(entry.text, indent=2) + "\n"
    elif entry.form == "json lines":
        text = scrubber.json_lines(entry.text)
    elif entry.form == "yaml":
        text = scrubber.yaml(entry.text, entry.path)
    else:
        text = scrubber.text(entry.text)
    if entry.path.startswith("scripts/"):
        scrubber.secrets_found += entry.text.count(
            REDACTED_TEXT
        )  # these secrets were taken out before scripts were rendered
    return replace(
        entry,
        path=_scrub_path(entry.path, scrubber),
        text=text,
        node=_scrub_optional_text(entry.node, scrubber),
        command=_scrub_optional_text(entry.command, scrubber),
        trouble=_scrub_optional_text(entry.trouble, scrubber),
    )


def _scrub_path(path: str, scrubber: Scrubber) -> str:
    """A path in the archive with pseudonyms for names in its foreign parts: a node's folder, and a run's files."""
    first, *parts = path.split("/")
    theirs = {"nodes": (0, 1), "scripts": (0, 1), "run": (1, len(parts))}.get(first, (0, 0))
    return "/".join(
        [first, *(scrubber.text(part) if theirs[0] <= at < theirs[1] else part for at, part in enumerate(parts))]
    )
