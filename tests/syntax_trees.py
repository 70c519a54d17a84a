"""The package's source files as syntax trees. Who looks through all of them is of the group `SOURCE`: one worker parses them once."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

SOURCE = pytest.mark.xdist_group("source")


@functools.cache
def syntax_tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(syntax_tree(file)))
