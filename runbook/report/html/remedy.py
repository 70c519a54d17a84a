"""A remedy as a page shows it: the sentence, and each command in it by itself, ready to be copied. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from runbook.model.fold import fold
from runbook.report.groups import FindingBlock, Said

_QUOTED = re.compile(r"`([^`]*)`")


@dataclass(frozen=True, slots=True)
class Fix:
    """`where`: on which nodes, as text, empty where it says so itself; `sentence` empty where it is only a command."""

    where: str
    sentence: str
    commands: tuple[str, ...]


def fixes(said: Iterable[Said], block: FindingBlock) -> list[Fix]:
    found: list[Fix] = []
    for nodes, remedy in said:
        for where, step in remedy.placed(() if block.unreached else nodes):
            if step.commands:
                before = found.pop().commands if found and (found[-1].where, found[-1].sentence) == (where, "") else ()
                found.append(Fix(where, "", (*before, *step.commands)))
                continue
            commands = tuple(dict.fromkeys(filter(_typed, _QUOTED.findall(step.note))))
            found.append(Fix(where or _whose(nodes, block), step.note, commands))
    return found


def _whose(nodes: Collection[str], block: FindingBlock) -> str:
    return fold(nodes) if len(block.fixes) > 1 else ""


def _typed(text: str) -> bool:
    """Whether this piece in code type is typed into a shell, and no key of a file or a plain word."""
    return " " in text.strip() and not text.strip().endswith((":", "=")) and not text[:1].isupper() and ": " not in text
