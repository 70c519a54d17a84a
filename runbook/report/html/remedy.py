"""A remedy as a page shows it: the sentence, and each command in it by itself, ready to be copied. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from runbook.model.fold import fold
from runbook.report.groups import FindingBlock, Said
from runbook.report.remedies import QUOTED, is_command, is_sentence, placed


@dataclass(frozen=True, slots=True)
class Fix:
    """`where`: on which nodes, as text, empty where it says so itself; `sentence` empty where it is only a command."""

    where: str
    sentence: str
    commands: tuple[str, ...]


def fixes(said: Iterable[Said], block: FindingBlock, known: Collection[str]) -> list[Fix]:
    """`known`: every node of the run."""
    found: list[Fix] = []
    for nodes, remedy in said:
        for where, what in placed(remedy, () if block.unreached else nodes, known):
            alone = not is_sentence(remedy) and (is_command(what) or SIGNS.search(what) is not None)
            if not is_sentence(what) and (where or alone) and _typed(what, where):
                before = found.pop().commands if found and (found[-1].where, found[-1].sentence) == (where, "") else ()
                found.append(Fix(where, "", (*before, what)))
                continue
            quoted = [text[1:-1] for text in QUOTED.findall(what)]
            commands = tuple(dict.fromkeys(text for text in quoted if _typed(text, "")))
            found.append(Fix(where or _whose(nodes, block), what, commands))
    return found


def _whose(nodes: Collection[str], block: FindingBlock) -> str:
    return fold(nodes) if len(block.fixes) > 1 else ""


SIGNS = re.compile(r"^runbook |(?:^|\s)--?\w|[/=|<>$~&]|\w\.\w")
"""An option, a path, a pipe, a file: what a command has and a sentence such as `run it again` has not."""


def _typed(text: str, where: str) -> bool:
    """Whether this is typed into a shell, and no key of a file or a plain word."""
    if where:
        return True
    return " " in text.strip() and not text.strip().endswith((":", "=")) and not text[:1].isupper() and ": " not in text
