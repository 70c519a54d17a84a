"""What people can do with groups, for pages and JSON alike. Every function may block: none is for the event loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from runbook.files.address import is_loopback
from runbook.files.scalars import scalar_yaml
from runbook.files.yaml_edit import Text, Uneditable
from runbook.model.grouping import values_by_key
from runbook.model.units import first_items_text
from runbook.serve.agent_states import AgentState
from runbook.serve.group_files import MAX_GROUP_BYTES, GroupFile
from runbook.serve.group_form import (
    NEW_GROUP_TEMPLATE,
    QUOTED_VALUE_CHARACTERS,
    WrongField,
    add_node,
    differing_fields,
    node_entries,
    open_group_text,
    remove_node,
    set_fields,
    settings_of_nodes,
    shift_node,
)
from runbook.serve.group_preview import (
    Linted,
    Meaning,
    group_diff_lines,
    group_meaning,
    lint_group_text,
    new_errors,
    restore_secrets,
)
from runbook.serve.run_processes import NotRunning
from runbook.serve.workspace import Workspace

_EMPTY_GROUP_ERRORS = ("`nodes` is empty", "`rendezvous` names the master", "is not among the nodes")
"""Words of the errors that do not keep a group from being saved: those of a group without nodes."""
RESTART_ANSWER = "it has been asked to end, and will start again after that"


class Refused(ValueError):
    """A change is not made; the text says why. `errors` are the findings of lint that are the reason."""

    def __init__(self, says: str, errors: Sequence[Any] = ()) -> None:
        super().__init__(says)
        self.errors = list(errors)


@dataclass(frozen=True, slots=True)
class Proposed:
    """What a change would make of a group: the file's new text, its meaning, the diff, and the names of the changed
    fields."""

    text: str
    linted: Linted
    meaning: Meaning
    difference: list[str]
    changed: list[str]


def create_group(workspace: Workspace, name: str, person: str) -> GroupFile:
    """Create a group without nodes. Raises NameTaken."""
    file = workspace.groups.create(name, NEW_GROUP_TEMPLATE.format(name=scalar_yaml(name)), person)
    _publish_changes(workspace, name)
    return file


def propose_change(workspace: Workspace, file: GroupFile, fields: Mapping[str, str]) -> Proposed:
    """What saving these fields of the form would do; nothing is saved. The field `text` is the whole file. Raises
    Refused."""
    look = workspace.view_of(file)
    if look.linted.closed:
        raise Refused(look.linted.closed)
    given = {name: restore_secrets(value, look.linted.hidden) for name, value in fields.items()}
    given.pop("world_size", None)  # no value of the file: it is only compared with the result below
    typed = given.pop("text", file.text)
    text, changed = file.text, []
    if with_unix_line_ends(typed) != with_unix_line_ends(text):
        text, changed = with_unix_line_ends(typed), ["text"]
    try:
        if new := _fields_to_change(file, given):
            editing = open_group_text(file.name, text)
            changed += set_fields(editing, new)
            text = editing.text
    except WrongField as wrong:
        raise Refused(_with_hidden_names(f"{wrong.field}: {wrong}", look.linted.hidden)) from None
    except (Uneditable, ValueError) as error:
        said = _with_hidden_names(str(error), look.linted.hidden)
        raise Refused(f"{said}: change it in the text of the file") from None
    _refuse_too_large(text)
    after = lint_group_text(file.path, text)
    if after.closed:
        raise Refused(after.closed)
    if any(secret in after.shown for secret in look.linted.hidden.values()):
        raise Refused("a secret would be visible to everybody: leave hidden-secret-… where it is, or take it out")
    means = group_meaning(file.path, text)
    said = fields.get("world_size", "").strip()
    if said and said != str(means.world_size):
        raise Refused(_world_size_mismatch_text(said, means))
    return Proposed(text, after, means, group_diff_lines(file.name, look.linted.shown, after.shown), changed)


def _with_hidden_names(said: str, hidden: Mapping[str, str]) -> str:
    """A sentence in which secrets that were put in for their names, or the beginnings of them that an error quotes, are
    the names again."""
    for name, secret in hidden.items():
        for shown in (secret, secret[:QUOTED_VALUE_CHARACTERS]):
            said = said.replace(shown, name) if shown else said
    return said


def _refuse_too_large(text: str) -> None:
    """Raises Refused for a file of more than MAX_GROUP_BYTES, which could be saved but never opened again."""
    if (size := len(text.encode())) > MAX_GROUP_BYTES:
        raise Refused(f"the file would have {size:,} bytes, and {MAX_GROUP_BYTES:,} are the most of a group")


def with_unix_line_ends(text: str) -> str:
    """The text with `\\n` as its line ends. Browsers send others, so texts are compared in this form."""
    return re.sub(r"\r\n?", "\n", text)


def _fields_to_change(file: GroupFile, given: Mapping[str, str]) -> dict[str, str]:
    """The fields that differ from the file: a field that nobody touched stays as it is, even if the text is changed."""
    try:
        return differing_fields(open_group_text(file.name, file.text), given)
    except Uneditable:  # the form shows nothing of such a file
        return {name: value for name, value in given.items() if value.strip()}


def _world_size_mismatch_text(said: str, means: Meaning) -> str:
    """The sentence about a world size that the nodes do not make."""
    each = Counter(rank.node for rank in means.ranks)
    parts = ", ".join(f"{node} {count}" for node, count in list(each.items())[:8]) + (", …" if len(each) > 8 else "")
    meaning = (
        f"these nodes make {means.world_size} ranks ({parts})" if each else f"no ranks can be assigned: {means.why}"
    )
    return f"a world size of {said[:20]} does not fit: {meaning}"


def save_group(workspace: Workspace, name: str, fields: Mapping[str, str], seen: str, person: str) -> list[str]:
    """Save the fields of the form over the file whose hash is `seen`; returns the names of the changed fields. Raises
    Refused, ChangedMeanwhile, NoGroup."""
    file = workspace.groups.read(name)
    if file.hash != seen:
        workspace.groups.save(name, file.text, seen, person, "")  # raises ChangedMeanwhile
    proposed = propose_change(workspace, file, fields)
    _refuse_new_errors(workspace.view_of(file).linted, proposed.linted)
    what = ", ".join("the text" if one == "text" else one for one in proposed.changed)
    workspace.groups.save(name, proposed.text, seen, person, f"changed {what}")
    _publish_changes(workspace, name)
    return proposed.changed


def _refuse_new_errors(before: Linted, after: Linted) -> None:
    """Raises Refused if a change adds errors."""
    errors = [
        one
        for one in new_errors(before.findings, after.findings)
        if not any(word in one.message for word in _EMPTY_GROUP_ERRORS)
    ]
    if errors:
        first = errors[0]
        raise Refused(f"line {first.line}: {first.message}" + (f" ({first.help})" if first.help else ""), errors)


def rename(workspace: Workspace, name: str, new: str, seen: str, person: str) -> None:
    """Rename a group. Raises NameTaken, ChangedMeanwhile, NoGroup, and Refused while the group runs."""
    _refuse_running_group(workspace, name)
    workspace.groups.rename(name, new, seen, person)
    _publish_changes(workspace, name, new)


def delete_group(workspace: Workspace, name: str, seen: str, person: str) -> None:
    """Delete a group. Raises ChangedMeanwhile, NoGroup, and Refused while the group runs."""
    _refuse_running_group(workspace, name)
    workspace.groups.delete(name, seen, person)
    _publish_changes(workspace, name)


def _refuse_running_group(workspace: Workspace, name: str) -> None:
    if running := workspace.processes.running(name):
        raise Refused(f"{name} runs ({running[0]}): stop it first")


def shift_group_node(workspace: Workspace, name: str, node: str, by: int, seen: str, person: str) -> None:
    """Put a node one place up (-1) or down (1) among those of its group. Raises Refused, ChangedMeanwhile, NoGroup."""
    file = workspace.groups.read(name)
    try:
        text = open_group_text(name, file.text)
        shift_node(text, node, by)
    except (Uneditable, ValueError) as error:
        raise Refused(f"{node}: {error}") from None
    _refuse_too_large(text.text)
    workspace.groups.save(name, text.text, seen, person, f"moved {node} {'up' if by < 0 else 'down'}")
    _publish_changes(workspace, name)


def move_nodes(
    workspace: Workspace, chosen: Sequence[tuple[str, str]], target: str, person: str, agents: Mapping[str, AgentState]
) -> list[str]:
    """Move nodes into the group `target`; returns the groups that changed. `chosen` has pairs of group and node; an
    empty group, or target, means no group.

    The nodes of each source group are moved all or none. Raises Refused, NoGroup, ChangedMeanwhile.
    """
    changed: list[str] = []
    try:
        for group, nodes in values_by_key(one for one in chosen if one[0] != target).items():
            try:
                changed += _move_from_group(workspace, group, target, nodes, person=person, agents=agents)
            except (Uneditable, ValueError) as error:
                raise Refused(f"{first_items_text(nodes, 1)}: {error}") from None
    finally:
        _publish_changes(workspace, *changed)  # nodes that were moved before a group refused stay moved
    return changed


def _move_from_group(
    workspace: Workspace, group: str, target: str, nodes: list[str], *, person: str, agents: Mapping[str, AgentState]
) -> list[str]:
    """Move the nodes of one group; returns the groups that changed."""
    source = workspace.groups.read(group) if group else None
    sink = workspace.groups.read(target) if target else None
    out = open_group_text(group, source.text) if source else None
    into = open_group_text(target, sink.text) if sink else None
    alone = into is not None and not node_entries(into) and len(nodes) == 1
    taken = settings_of_nodes(out, nodes) if out else {}
    for node in nodes:
        if into:
            add_node(into, node, taken[node] if out else _settings_from_agent(node, agents, alone=alone))
        if out:
            remove_node(out, node)
    for file, text in ((source, out), (sink, into)):
        if file and text:
            _refuse_too_large(text.text)
            _refuse_new_errors(workspace.view_of(file).linted, lint_group_text(file.path, text.text))
    what = f"moved {first_items_text(nodes, 1)} from {group or 'no group'} to {target or 'no group'}"
    if source and sink and out and into:
        workspace.groups.save_two((group, out.text, source.hash), (target, into.text, sink.hash), person, what)
        return [group, target]
    file, text = (source, out) if source else (sink, into)
    assert file is not None
    assert text is not None
    workspace.groups.save(file.name, text.text, file.hash, person, what)
    return [file.name]


def _settings_from_agent(node: str, agents: Mapping[str, AgentState], *, alone: bool) -> dict[str, object]:
    """The settings of a node that is in no file, as its agent reports it. The address that its agent dialled from is
    left out when peers cannot use it: when it is loopback (a tunnel, this machine), or when other agents dial from it
    too (a router between). `alone`: the node gets no peers, and any address will do. Raises Refused."""
    agent = agents.get(node)
    if agent is None:
        raise Refused(f"{node} is in no group, and no agent has that name")
    settings: dict[str, object] = {"connection": "agent"}
    shared = any(other.address == agent.address for other in agents.values() if other.name != node)
    if agent.address and (alone or not (shared or is_loopback(agent.address))):
        settings["address"] = agent.address
    if agent.gpus:
        settings["gpus"] = len(agent.gpus)
    return settings


def start_group(workspace: Workspace, name: str, person: str, *, only_launch: bool = False) -> str:
    """Run the group's checks and then its launch; returns the id of the run. Raises Refused, Busy, NoGroup."""
    look = workspace.view(name)
    if look.meaning.why:
        raise Refused(look.meaning.why)
    if not look.meaning.command:
        raise Refused("there is nothing to start: the file has no `launch:`")
    more = ["--start-at", "launch"] if only_launch else []
    if look.meaning.by_agent:
        more.append("--detach")  # the end of this server, through which agents are reached, must not end the ranks
    return workspace.processes.start(name, look.file.path, person, more)


def end_latest_run(workspace: Workspace, name: str, person: str, *, now: bool = False) -> str:
    """Stop the group's latest run, or kill it (`now`); returns a sentence about what was done. Raises NotRunning."""
    latest = workspace.latest_run(name)
    if latest is None:
        raise NotRunning(name)
    return workspace.processes.end(latest.id, person, now=now)


def restart_group(workspace: Workspace, name: str, person: str) -> None:
    """Stop the group's latest run, and start the group again once it is over. Raises NotRunning, NoGroup."""
    latest = workspace.latest_run(name)
    if latest is None:
        raise NotRunning(name)
    workspace.groups.read(name)
    workspace.restarts.ask(latest.id, name, person, partial(start_group, workspace))


def restore_version(workspace: Workspace, name: str, version: int, seen: str, person: str) -> None:
    """Save an earlier version of the file over the present one. Raises Refused, ChangedMeanwhile, NoGroup."""
    text = workspace.groups.text_of(name, version)
    if text is None:
        raise Refused("there is no such version of it")
    workspace.groups.save(name, text, seen, person, f"restored version {version}")
    _publish_changes(workspace, name)


def editable_text(file: GroupFile, seen: Linted) -> Text | None:
    """The file for the form, without its secrets; None if no form can be made of it."""
    try:
        return open_group_text(file.name, seen.shown)
    except Uneditable:
        return None


def _publish_changes(workspace: Workspace, *names: str) -> None:
    """Report to open pages that these groups have changed."""
    for name in names:
        workspace.changed(f"groups/{name}")
    workspace.changed("groups")
    workspace.changed("fleet")
