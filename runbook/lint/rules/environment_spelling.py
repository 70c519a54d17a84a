"""Which known variable somebody meant who wrote an unknown one."""

from __future__ import annotations

import difflib
import re
from collections import Counter

from runbook.lint.variables.table import known

_SLIPS = 2  # letters wrong, missing, too many or exchanged, in a word that is long enough for it


def closest(name: str) -> tuple[str | None, bool]:
    """The known name that is closest, and whether this can only be a slip of it; (None, False) if nothing is near."""
    names = [one for one, variable in known().items() if not (variable.never or variable.removed or variable.last)]
    other_reader = f"TORCH_{name}" if name.startswith("NCCL_") else name.removeprefix("TORCH_")
    words = sorted(name.split("_"))
    joined = name.replace("_", "")
    for one in names:
        if one == other_reader or one.replace("_", "") == joined or sorted(one.split("_")) == words:
            return one, True
    for one in names:
        if abs(len(one) - len(name)) <= _SLIPS and _is_slip(one, name):
            return one, True
    family = name.partition("_")[0]
    stems = [one.partition("_")[2] for one in names if one.partition("_")[0] == family]
    near = difflib.get_close_matches(name.partition("_")[2], stems, n=1, cutoff=0.7)
    return (f"{family}_{near[0]}" if near else None), False


def is_slip_of(family: str, word: str) -> bool:
    """Whether `word` is `family` with one slip, and no sister's name: RCCL and HCCL are not NCCL misspelt."""
    near = word != family and abs(len(word) - len(family)) <= 1 and not re.fullmatch("[A-Z]CCL", word)
    return near and _distance(family, word) <= 1


def _is_slip(one: str, other: str) -> bool:
    """Few letters differ, word by word: _IB_TC and _IB_SL are two things, and so are LL and LL128."""
    ours, theirs = one.split("_"), other.split("_")
    if len(ours) != len(theirs):
        return False
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    if len(different) > _SLIPS:
        return False
    return all(_one_word(a, b) for a, b in different)


def _one_word(meant: str, written: str) -> bool:
    if _abbreviated(meant, written) or _abbreviated(written, meant):
        return True
    allowed = 0 if len(meant) < 3 else 1 if len(meant) < 5 else _SLIPS
    letters = re.sub("[0-9]", "", meant), re.sub("[0-9]", "", written)
    if letters[0] == letters[1]:
        return False  # only digits differ: another level, not another spelling
    if sum(((Counter(meant) - Counter(written)) + (Counter(written) - Counter(meant))).values()) > 2 * allowed:
        return False
    return _distance(meant, written) <= allowed


def _abbreviated(short: str, long: str) -> bool:
    """CNT for COUNT, but not P2P for anything."""
    if not (2 < len(short) < len(long) <= len(short) + 3 and short.isalpha() and short[0] == long[0]):
        return False
    letters = iter(long)
    return all(letter in letters for letter in short)


def _distance(one: str, other: str) -> int:
    """Insertions, deletions, replacements and exchanges of neighbours from one to the other."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, a in enumerate(one, 1):
        line = [row]
        for column, b in enumerate(other, 1):
            best = min(above[column] + 1, line[-1] + 1, above[column - 1] + (a != b))
            if row > 1 and column > 1 and a == other[column - 2] and one[row - 2] == b:
                best = min(best, before[column - 2] + 1)
            line.append(best)
        before, above = above, line
    return above[-1]
