"""Every regular expression of the package, and the texts that would make a bad one slow."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import _lru_cache_wrapper, cache
from itertools import islice
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from syntax_trees import nodes, syntax_tree

import runbook
from runbook.diagnose.rule_types import Sign
from runbook.diagnose.tool_outputs import MAX_LINE_CHARACTERS

parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
sre: Any = importlib.import_module("re._constants" if sys.version_info >= (3, 11) else "sre_constants")

THROUGHOUT = ("sub", "subn", "split", "findall", "finditer")
"""Behind the first match these look on, where a search has ended."""
METHODS = ("compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
ALPHABET = " =:0a\t\n,.-_/'\"[]({<>#\\|ZeF;%$@é\0*&!"
"""Members of classes are taken from here first: what logs, tools and YAML are made of."""
GENERIC = (" ", "=", ":", "0", "a", "\n", " \n", "'", '"', "[", "(", "a ", "0.", "a.", "# \n", "-", ", ", "\\")

READ_BY_CHECKS = ("ibstat", "nvidia.", "nvidia:")
"""Modules of `parsers` that are given what nodes printed as it is; all others get what `paste` has cut into lines."""


@dataclass(frozen=True, slots=True)
class Found:
    """A pattern, where it stands, and how it is asked: `search`, unless all who use it say `match` or `fullmatch`, or
    some look for all places of it (`finditer`)."""

    pattern: re.Pattern[Any]
    place: str
    asked: str = "search"

    def ask(self, text: Any) -> object:
        asked = getattr(self.pattern, self.asked)(text)
        return deque(asked, maxlen=0) if self.asked == "finditer" else asked

    def subjects(self, text: str) -> list[str]:
        """What of a text it is asked on: of the outputs of tools, which are cut, all together or line by line."""
        of_paste = self.place.startswith("runbook.diagnose.tool_outputs.")
        module = self.place.removeprefix("runbook.parsers.")
        if not of_paste and (module == self.place or module.startswith(READ_BY_CHECKS)):
            return [text]
        lines = [
            line[at : at + MAX_LINE_CHARACTERS]
            for line in text.split("\n")
            for at in range(0, len(line) or 1, MAX_LINE_CHARACTERS)
        ]
        if of_paste:
            lines = [line for line in lines if line.strip()]
        # What a function searches for itself it may search for in a whole output.
        return ["\n".join(lines)] if self.pattern.flags & re.MULTILINE or ":" in module else lines


@cache
def every_pattern() -> list[Found]:
    """By the value: of modules, classes, tables, rules. By the source: what functions compile, and programs for nodes."""
    found: dict[tuple[Any, int, str], Found] = {}
    folder = Path(runbook.__file__).parent
    files = sorted(folder.rglob("*.py"))
    asked = _asked(files)
    for file in files:
        parts = file.relative_to(folder.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if "node" in parts:  # they begin to work when they are imported
            found_here = list(_of_source(name, file, _constants(file)))
        elif parts[-1] == "__main__":
            continue
        else:
            module = importlib.import_module(name)
            found_here = [*_of_values(module), *_of_source(name, file, vars(module))]
        for one in found_here:
            if one.place in asked:
                one = replace(one, asked=asked[one.place])
            found.setdefault((one.pattern.pattern, one.pattern.flags, one.asked), one)
    return list(found.values())


def _asked(files: Iterable[Path]) -> dict[str, str]:
    """How a pattern is asked that has a name of its own module's: by place, where that is not `search` alone. One that
    others may import is asked `search` at least."""
    asked: dict[str, str] = {}
    for file in files:
        module = ".".join(("runbook", *file.relative_to(Path(runbook.__file__).parent).with_suffix("").parts))
        uses: dict[str, set[str]] = {}
        said: set[int] = set()
        for node in nodes(file):  # an attribute before the name in it
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                uses.setdefault(node.value.id, set()).add(node.attr)
                said.add(id(node.value))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in said:
                uses.setdefault(node.id, set()).add("search")
        for name, methods in uses.items():
            if not methods.isdisjoint(THROUGHOUT):
                asked[f"{module}.{name}"] = "finditer"
            elif name.startswith("_") and methods <= {"match", "fullmatch"}:
                asked[f"{module}.{name}"] = "match" if "match" in methods else "fullmatch"
    return asked


def _constants(file: Path) -> dict[str, object]:
    constants: dict[str, object] = {}
    for node in syntax_tree(file).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with suppress(ValueError):
                constants[node.targets[0].id] = ast.literal_eval(node.value)
    return constants


def _of_values(module: ModuleType) -> Iterator[Found]:
    seen: set[int] = set()

    def inside(value: object, place: str) -> Iterator[Found]:
        if id(value) in seen or isinstance(value, str | bytes | int | float | ModuleType):
            return
        seen.add(id(value))
        if isinstance(value, re.Pattern):
            yield Found(value, place)
        elif isinstance(value, Sign):
            compiled = value.compiled()
            if compiled is not None:
                yield Found(compiled, f"{place}.{value.name}")
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                yield from inside(inner, f"{place}[{key!r}]"[:120])
                yield from inside(key, place)
        elif isinstance(value, _lru_cache_wrapper) and value.__module__ == module.__name__:
            if not inspect.signature(value).parameters:
                yield from inside(value(), f"{place}()")
        elif isinstance(value, list | tuple | set | frozenset):
            for index, inner in enumerate(value):
                yield from inside(inner, f"{place}[{index}]")
        elif isinstance(value, FunctionType):
            for inner in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                yield from inside(inner, f"{place}()")
            for cell in value.__closure__ or ():
                yield from inside(cell.cell_contents, f"{place}()")
        elif inspect.ismethod(value) or inspect.isbuiltin(value):
            yield from inside(value.__self__, place)
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for name, inner in vars(value).items():
                yield from inside(inner, f"{place}.{name}")
        elif is_dataclass(value) and not isinstance(value, type):
            for field in fields(value):
                yield from inside(getattr(value, field.name, None), f"{place}.{field.name}")
        elif type(value).__module__.startswith("runbook"):
            for name, inner in getattr(value, "__dict__", {}).items():
                yield from inside(inner, f"{place}.{name}")

    for name, value in list(vars(module).items()):
        if not name.startswith("__"):
            yield from inside(value, f"{module.__name__}.{name}")


def _of_source(name: str, file: Path, known: Mapping[str, object]) -> Iterator[Found]:
    """Calls like `re.search(pattern, …)`; f-strings with the module's own constants, a word for all else in them."""
    named = {
        id(node.value): node.targets[0].id
        for node in syntax_tree(file).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in nodes(file):
        function = node.func if isinstance(node, ast.Call) else None
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
            continue
        assert isinstance(node, ast.Call)
        if function.value.id != "re" or function.attr not in METHODS or not node.args:
            continue
        text = _text(node.args[0], known)
        if text is None:
            continue
        flags = _flags(node)
        asked = function.attr if function.attr in ("match", "fullmatch") else "search"
        asked = "finditer" if function.attr in THROUGHOUT else asked
        try:
            pattern = re.compile(text, flags)
        except (re.error, TypeError, ValueError):  # a part that only the function knows is a bracket or a flag
            continue
        yield Found(pattern, f"{name}.{named[id(node)]}" if id(node) in named else f"{name}:{node.lineno}", asked)


def _text(node: ast.expr, known: Mapping[str, object]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, known), _text(node.right, known)
        return left + right if type(left) is type(right) and left is not None else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        left = _text(node.left, known)
        return left.replace("%s", "name").replace("%%", "%") if isinstance(left, str) else None
    if isinstance(node, ast.Name):
        value = known.get(node.id)
        return value if isinstance(value, str | bytes) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else (_inner(part, known) or "name")
            for part in node.values
        )
    return None


def _inner(part: ast.expr, known: Mapping[str, object]) -> str | None:
    value = _text(part.value, known) if isinstance(part, ast.FormattedValue) else None
    return value if isinstance(value, str) else None


def _flags(call: ast.Call) -> int:
    flags = 0
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "flags")]
    for argument in given:
        for node in ast.walk(argument):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re":
                flag = getattr(re, node.attr, None)
                flags |= int(flag) if isinstance(flag, re.RegexFlag) else 0
    return flags


# Texts.


def texts(pattern: re.Pattern[Any], *, most: int, throughout: bool = False) -> Iterator[tuple[str, str, str]]:
    """(head, pump, tail): the text is head + pump * n + tail. Those from the pattern's own tree stand first."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(source, pattern.flags & ~(re.DEBUG | (0 if isinstance(pattern.pattern, str) else re.UNICODE)))
    cases: dict[tuple[str, str, str], None] = {}
    pumps = list(dict.fromkeys(_pumps(tree)))
    starts = [head for head in dict.fromkeys(head for head, _ in pumps) if head]
    # One text that nothing ends, and what begins again and again and is never finished; then more of both.
    cases.update(dict.fromkeys((head, pump, "\0!") for head, pump in pumps[:4]))
    cases.update(dict.fromkeys(("", head, "\0") for head in starts[:4]))
    for head, pump in pumps:
        for tail in ("", "\0!", "\n"):
            cases.setdefault((head, pump, tail))
    whole = _example(tree)
    for cut in range(1, len(whole) + 1):
        cases.setdefault(("", whole[:cut], "\0"))
    for head in starts:
        cases.setdefault(("", head, "\0"))
        cases.setdefault(("", head + " ", "\0"))
    if throughout and whole:
        # Behind a match.
        for cut in range(1, len(whole)):
            cases.setdefault((f"{whole}\n", whole[:cut], "\0"))
            cases.setdefault((f"{whole}\n", f"{whole[:cut]} ", "\0"))
        cases.setdefault(("", f"{whole} ", "\0"))
    for pump in GENERIC:
        cases.setdefault(("", pump, "\0"))
        cases.setdefault((whole, pump, "\0"))
    yield from islice((case for case in cases if case[1]), most)


def _pumps(tree: Iterable[Any], head: str = "") -> Iterator[tuple[str, str]]:
    """For every repetition: an example of what stands before it, and texts that it repeats."""
    for op, value in tree:
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, getattr(sre, "POSSESSIVE_REPEAT", None)):
            _, most, body = value
            if most > 8:
                for pump in _members(body):
                    yield head, pump
                    if head:
                        yield "", pump
            yield from _pumps(body, head)
        elif op is sre.SUBPATTERN:
            yield from _pumps(value[3], head)
        elif op is sre.BRANCH:
            for branch in value[1]:
                yield from _pumps(branch, head)
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            if value[0] > 0:
                yield from _pumps(value[1], head)
        elif op is sre.GROUPREF_EXISTS:
            for branch in value[1:]:
                if branch is not None:
                    yield from _pumps(branch, head)
        elif op is getattr(sre, "ATOMIC_GROUP", None):
            yield from _pumps(value, head)
        head += _example([(op, value)])


def _members(body: Iterable[Any]) -> Iterator[str]:
    """Texts that the body of a repetition takes: for a class its members, else an example of each of its branches."""
    body = list(body)
    if len(body) == 1:
        op, value = body[0]
        if op is sre.SUBPATTERN:
            yield from _members(value[3])
            return
        if op is sre.BRANCH:
            for branch in value[1]:
                yield from _members(branch)
            return
        members = [char for char in ALPHABET if _takes(op, value, char)]
        if members:
            yield from members[:9]
            return
    yield _example(body)
    for at, (op, value) in enumerate(body):
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT) or op is sre.IN:
            inner = value[2] if op is not sre.IN else [(op, value)]
            for member in islice(_members(inner), 3):
                yield _example(body[:at]) + member + _example(body[at + 1 :])
        elif op is sre.SUBPATTERN:
            for member in islice(_members(value[3]), 3):
                yield _example(body[:at]) + member + _example(body[at + 1 :])


_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


def _takes(op: Any, value: Any, char: str) -> bool:
    if op is sre.LITERAL:
        return bool(ord(char) == value)
    if op is sre.NOT_LITERAL:
        return bool(ord(char) != value)
    if op is sre.ANY:
        return char != "\n"
    if op is sre.IN:
        negated = value[0][0] is sre.NEGATE
        return any(_in(one, what, char) for one, what in value if one is not sre.NEGATE) != negated
    return False


def _in(op: Any, value: Any, char: str) -> bool:
    if op is sre.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if op is sre.CATEGORY:
        return re.match(_CATEGORIES[value], char) is not None
    return _takes(op, value, char)


def _example(tree: Iterable[Any]) -> str:
    """A short text that the tree takes, as far as that can be told without looking around."""
    text = ""
    for op, value in tree:
        if op is sre.LITERAL:
            text += chr(value)
        elif op in (sre.NOT_LITERAL, sre.IN, sre.ANY):
            candidates = [*ALPHABET, *(chr(code) for code in range(33, 127))]
            if op is sre.IN and value[0][0] in (sre.LITERAL, sre.RANGE):
                first = value[0][1] if value[0][0] is sre.LITERAL else value[0][1][0]
                candidates.append(chr(first))
            text += next((char for char in candidates if _takes(op, value, char)), "")
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, getattr(sre, "POSSESSIVE_REPEAT", None)):
            text += _example(value[2]) * min(value[0], 50)
        elif op is sre.SUBPATTERN:
            text += _example(value[3])
        elif op is sre.BRANCH:
            text += _example(value[1][0])
        elif op is getattr(sre, "ATOMIC_GROUP", None):
            text += _example(value)
    return text


# Times.


def slow(found: Found, *, size: int, most: int) -> str | None:
    """The first text of this many characters on which four times the text takes more than eight times as long.

    In CPU time of this thread, the best of three where it matters. None where there is no such text.
    """
    ask = found.ask
    of_bytes = isinstance(found.pattern.pattern, bytes)

    def cost(text: str, times: int) -> float:
        subjects = [one.encode("utf-8", "replace") if of_bytes else one for one in found.subjects(text)]
        return min(_seconds(ask, subjects) for _ in range(times))

    for head, pump, tail in texts(found.pattern, most=most, throughout=found.asked == "finditer"):

        def long(length: int, head: str = head, pump: str = pump, tail: str = tail) -> str:
            return head + pump * (length // len(pump) + 1) + tail

        for few in (16, 24, size // 64, size // 8):  # what is far from linear would not be over for hours
            if cost(long(few), 1) > 0.2:
                return f"{few:,} characters take more than 0.2 s: {_shown(head, pump, tail)}"
        if cost(long(size), 1) < _DEAREST * size or cost(long(size), 2) < _DEAREST * size:
            continue  # nothing that is not linear costs so little
        once, four = cost(long(size), 3), cost(long(4 * size), 1)
        if four > 8 * once and (four > 0.5 or cost(long(4 * size), 3) > 8 * once):
            return f"{size:,} characters {once:.4f} s, {4 * size:,} {four:.4f} s: {_shown(head, pump, tail)}"
    return None


_DEAREST = 100e-9
"""Seconds a character, from which on it is measured again with a longer text."""


def _shown(head: str, pump: str, tail: str) -> str:
    return f"{head[:60]!r} + {pump[:60]!r} * n + {tail!r}"


def _seconds(ask: Any, subjects: Iterable[Any]) -> float:
    start = time.thread_time()
    for subject in subjects:
        ask(subject)
    return time.thread_time() - start
