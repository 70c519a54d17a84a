"""`inventory explain NODE [KEY]`: every value that was given for a key, where it stands, and the one that wins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from runbook.load.hints import nearest
from runbook.load.node_sets import select
from runbook.load.origins import Origins
from runbook.model.errors import FilesWrong, Problem
from runbook.model.fold import fold
from runbook.model.inventory import Inventory, Node
from runbook.model.visible import visible
from runbook.report.inventory.listing import headline
from runbook.report.inventory.values import Answers, Ask, ExplainedKey

MOST_NODES = 8
"""Of more nodes at once nobody reads every key; one key of any number is fine."""


def text(inventory: Inventory, origins: Origins, pattern: str, key: str | None) -> str:
    """Raises FilesWrong for a node, or a key, that is not there."""
    nodes = select(pattern, inventory)
    answers = Answers(inventory, origins)
    if key is not None:
        return _one_key(answers, nodes, key)
    if len(nodes) > MOST_NODES:
        message = f"`{pattern}` means {len(nodes):,} nodes; every key of so many is more than anybody reads"
        raise FilesWrong([Problem("arguments.too-many-nodes", message, None, "name one node, or a KEY as well")])
    return f"{headline(inventory)}\n" + "".join(_every_key(answers, node) for node in nodes)


def _every_key(answers: Answers, node: Node) -> str:
    rows = []
    for ask in answers.about(node).values():
        answer = ask()
        best = answer.given[-1] if answer.given else None
        place = str(best.span) if best and best.span else ""
        more = f"  (over {', '.join(one.level for one in answer.given[-2::-1])})" if len(answer.given) > 1 else ""
        rows.append((answer.key, answer.value, (best.level if best else answer.why) + more, place))
    return f"\n{visible(node.name)}\n" + _table(rows, "  ")


def _one_key(answers: Answers, nodes: Sequence[Node], key: str) -> str:
    """What is the same for several nodes is said once."""
    same: dict[tuple[str, ...], list[str]] = {}
    first: dict[tuple[str, ...], ExplainedKey] = {}
    for node in nodes:
        answer = _find(answers.about(node), node, key)()
        alike = (answer.key, answer.value, answer.why, *(f"{one.level} {one.text} {one.span}" for one in answer.given))
        same.setdefault(alike, []).append(node.name)
        first.setdefault(alike, answer)
    return "\n".join(_candidates(fold(names), first[alike]) for alike, names in same.items())


def _candidates(names: str, answer: ExplainedKey) -> str:
    """The winner first, then what it won over, the strongest first."""
    lines = [visible(f"{names}: {answer.key} = {answer.value}")]
    rows = [
        ("wins" if number == 0 else "", one.level, one.text, str(one.span) if one.span else "")
        for number, one in enumerate(reversed(answer.given))
    ]
    if answer.why:
        rows.append(("" if answer.given else "wins", answer.why, "", ""))
    return "\n".join(lines) + "\n" + _table(rows, "  ")


def _find(known: dict[str, Ask], node: Node, key: str) -> Ask:
    """The answer to a key as people write it: `env.NCCL_DEBUG`, `NCCL_DEBUG`, `user` for `ssh.user`."""
    if key in known:
        return known[key]
    ends = [name for name in known if name.rpartition(".")[2] == key]
    if len(ends) == 1:
        return known[ends[0]]
    if ends:
        message, help = f"`{key}` may mean several keys", f"write {' or '.join(ends)}"
        raise FilesWrong([Problem("arguments.unknown-key", message, None, help)])
    by_users = key.startswith(("env.", "vars."))
    message = f"nobody sets `{key}` on {node.name}" if by_users else f"a node has no key `{key}`"
    words = [*known, *(name.rpartition(".")[2] for name in known)]
    near = nearest(key, words)
    help = f"did you mean `{near}`?" if near else "without a KEY all of them are listed"
    raise FilesWrong([Problem("arguments.unknown-key", message, None, help)])


def _table(rows: Iterable[tuple[str, ...]], indent: str) -> str:
    listed = [tuple(map(visible, row)) for row in rows]
    widths = [min(48, max((len(row[column]) for row in listed), default=0)) for column in range(4)]
    return "".join(_lines(listed, widths, indent))


def _lines(rows: list[tuple[str, ...]], widths: list[int], indent: str) -> Iterator[str]:
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width]
        yield f"{indent}{'  '.join(cells)}".rstrip() + "\n"
