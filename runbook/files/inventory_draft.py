"""Writes an inventory as commented YAML text: settings that all nodes share in `defaults`, names folded into ranges,
each thing said once."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import runbook
from runbook.files.node_sets import folded_names, folded_rows
from runbook.files.scalars import flow_yaml, scalar_yaml
from runbook.files.value_origins import DEEP_MERGED_KEYS
from runbook.model.safe_text import visible_text

SettingPath = tuple[str, ...]  # a node's key: ("gpus",), ("ssh", "user"), ("vars", "rack")
SettingsByPath = Mapping[SettingPath, object]

MAX_LINE_COLUMNS = 110  # columns; a node that does not fit is written over several lines
# The keys of a node, in the order in which they are written.
NODE_KEY_ORDER = (
    *("address", "connection", "ssh", "slurm", "kubernetes", "container", "inside", "python", "shell", "activate"),
    *("workdir", "gpus", "processes", "rack", "leaf", "env", "vars"),
)
RANGED_SETTINGS: tuple[SettingPath, ...] = (
    ("address",),
    ("ssh", "host"),
)  # the keys that may hold a range, as the node's name does


@dataclass(frozen=True, slots=True)
class NodeDraft:
    """A node to write. `says` are comment lines above it; `left_out` writes the node itself as a comment."""

    name: str
    settings: SettingsByPath
    says: tuple[str, ...] = ()
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """All that goes into the text. Nodes stand in rank order; texts of comments are without `#`.

    `blocks` are rendezvous, network, infiniband, env and launch. `group_settings` are the settings that a group gives;
    each is written at the group if it holds for all of the group's nodes.
    `comments` stand beside a key of a block, by ("network", "interface"); `hints` are comment lines that end a block.
    """

    name: str
    nodes: tuple[NodeDraft, ...]
    header: tuple[str, ...] = ()
    blocks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group_settings: Mapping[str, SettingsByPath] = field(default_factory=dict)
    comments: Mapping[tuple[str, str], str] = field(default_factory=dict)
    hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    footer: tuple[str, ...] = ()


def made_from(source: str, *, good: str) -> str:
    """A line of the header that says what a draft was made from, and how long it is right."""
    return f"Made by runbook ({runbook.__version__}) from {source}; good {good}."


def draft_text(draft: Draft) -> str:
    """The text of the draft, which loads as the same nodes in the same order."""
    return "\n".join(_draft_lines(draft)) + "\n"


def _draft_lines(draft: Draft) -> Iterator[str]:
    for line in draft.header:
        yield from _comment_lines(line)
    yield f"name: {scalar_yaml(draft.name)}"
    for block in ("rendezvous", "network", "infiniband", "env"):
        yield from _block_lines(draft, block, draft.blocks.get(block, {}))
    nodes = [node for node in draft.nodes if not node.left_out]
    shared = _shared_settings(nodes)
    lifted = _lifted_settings(draft, nodes, shared)
    yield from _block_lines(draft, "defaults", _nested_settings(shared))
    yield "nodes:"
    above: dict[str, set[SettingPath]] = {node.name: set(shared) for node in nodes}
    for group, settings in lifted.items():
        for name in draft.groups[group]:
            above[name].update(settings)
    yield from _node_lines(draft.nodes, above)
    for hint in draft.hints.get("nodes", ()):
        yield from _comment_lines(hint, "  ")
    if draft.groups:
        yield "groups:"
    for group, members in draft.groups.items():
        expressions = folded_names(members)
        body: dict[str, object] = {"nodes": expressions[0] if len(expressions) == 1 else expressions}
        if lifted.get(group):
            body["defaults"] = _nested_settings(lifted[group])
        yield from _entry_lines(group, body, "  ")
    yield from _block_lines(draft, "launch", draft.blocks.get("launch", {}))
    if draft.footer:
        yield ""
    for line in draft.footer:
        yield from _comment_lines(line)


def _block_lines(draft: Draft, block: str, values: Mapping[str, object]) -> Iterator[str]:
    hints = draft.hints.get(block, ())
    if values:
        yield f"{block}:"
    elif hints:
        yield f"# {block}:"
    for key, value in values.items():
        yield from _line_with_comment(f"  {key}: {flow_yaml(value)}", draft.comments.get((block, key)))
    for hint in hints:
        yield from _comment_lines(hint, "  ") if values else _comment_lines(f"  {hint}")


def _line_with_comment(line: str, comment: str | None) -> Iterator[str]:
    if comment is None:
        yield line
    elif len(line) + len(comment) + 4 <= MAX_LINE_COLUMNS + 10:
        yield f"{line}  # {comment}"
    else:
        yield from _comment_lines(comment, "  ")
        yield line


def _shared_settings(nodes: Sequence[NodeDraft]) -> dict[SettingPath, object]:
    """The settings that every node has in common. RANGED_SETTINGS keys are never among them: a single node keeps these,
    since they tell it from nodes to come."""
    first = nodes[0].settings if nodes else {}
    return {
        key: value
        for key, value in _sorted_settings(first).items()
        if key not in RANGED_SETTINGS and all(_has_setting(node.settings, key, value) for node in nodes)
    }


def _lifted_settings(
    draft: Draft, nodes: Sequence[NodeDraft], shared: SettingsByPath
) -> dict[str, dict[SettingPath, object]]:
    """The settings that each group gives all of its nodes, by group, so that they need not be written node by node."""
    by_name = {node.name: node.settings for node in nodes}
    found: dict[str, dict[SettingPath, object]] = {}
    for group, settings in draft.group_settings.items():
        members = draft.groups.get(group, ())
        found[group] = {
            key: value
            for key, value in _sorted_settings(settings).items()
            if key not in RANGED_SETTINGS
            and key not in shared
            and members
            and all(_has_setting(by_name[name], key, value) for name in members)
        }
    return found


def _has_setting(settings: SettingsByPath, key: SettingPath, value: object) -> bool:
    return key in settings and settings[key] == value and isinstance(settings[key], bool) == isinstance(value, bool)


def _node_lines(nodes: Sequence[NodeDraft], above: Mapping[str, set[SettingPath]]) -> Iterator[str]:
    """The lines of `nodes:`. Neighbours that differ only in name and address become one range. `above` has for each
    node the settings that a level above it gives."""

    def alike(node: NodeDraft) -> object:
        own = {k: v for k, v in node.settings.items() if k not in above.get(node.name, ()) and k not in RANGED_SETTINGS}
        ranged = tuple(key in node.settings for key in RANGED_SETTINGS)
        return (
            flow_yaml({"/".join(key): value for key, value in _sorted_settings(own).items()}),
            ranged,
            node.says,
            node.left_out,
        )

    for _, group in groupby(nodes, key=alike):
        same = list(group)
        first = same[0]
        for line in first.says:
            yield from _comment_lines(line, "  ")
        rows = [(node.name, *(str(node.settings.get(key, "")) for key in RANGED_SETTINGS)) for node in same]
        for row, _ in folded_rows(rows):
            settings: dict[SettingPath, object] = {
                key: value for key, value in first.settings.items() if key not in above.get(first.name, ())
            }
            settings.update(
                {key: text for key, text in zip(RANGED_SETTINGS, row[1:], strict=True) if key in first.settings}
            )
            body = _nested_settings(_sorted_settings(settings))
            if first.left_out:
                yield f"  # {scalar_yaml(row[0])}: {flow_yaml(body)}"
            else:
                yield from _entry_lines(row[0], body, "  ")


def _entry_lines(name: str, body: Mapping[str, object], indent: str) -> Iterator[str]:
    """`name: {…}` on one line, or a key a line where that is too wide."""
    line = f"{indent}{scalar_yaml(name)}: {flow_yaml(body)}"
    if len(line) <= MAX_LINE_COLUMNS:
        yield line
        return
    yield f"{indent}{scalar_yaml(name)}:"
    for key, value in body.items():
        if isinstance(value, Mapping):
            yield from _entry_lines(key, value, indent + "  ")
        else:
            yield f"{indent}  {scalar_yaml(key)}: {flow_yaml(value)}"


def _nested_settings(settings: SettingsByPath) -> dict[str, object]:
    """{("ssh", "user"): "x"} as {"ssh": {"user": "x"}}."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key[0] in DEEP_MERGED_KEYS:
            found.setdefault(key[0], {})[key[1]] = value
        else:
            found[key[0]] = value
    return found


def _sorted_settings(settings: SettingsByPath) -> dict[SettingPath, object]:
    return dict(sorted(settings.items(), key=lambda item: NODE_KEY_ORDER.index(item[0][0])))


def _comment_lines(text: str, indent: str = "") -> Iterator[str]:
    """A comment over as many lines as it needs; nothing in the text may end it or steer a terminal."""
    shown = visible_text(text)
    inner = " " * (len(shown) - len(shown.lstrip()))
    lines = textwrap.wrap(
        shown.strip(),
        MAX_LINE_COLUMNS + 8 - len(indent) - len(inner),
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield from (f"{indent}# {inner}{line}" for line in lines)
