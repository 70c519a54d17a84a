"""Names: a docstring names what there is, and a module gives a name once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from syntax_trees import SOURCE, nodes, syntax_tree

import runbook

PACKAGE = Path(runbook.__file__).parent
CONSTANT = re.compile(r"(?<![A-Za-z0-9_])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
FOREIGN = frozenset(
    """CAP_NET_RAW IP_MTU_DISCOVER IPV6_MTU_DISCOVER IP_PMTUDISC_DO ID_RANDOM DB_PASSWORD WANDB_API_KEY TOKEN_FILE
    MAX_TOKENS X509_V_FLAG_NO_CHECK_TIME SSH_KNOWN_HOSTS PET_NODE_RANK MAX_PATH MAX_ARG_STRLEN""".split()
)
"""Constants of other software, and variables, of which docstrings alone speak."""


def texts_of_docstrings(file: Path) -> list[ast.Constant]:
    expressions = (node.value for node in nodes(file) if isinstance(node, ast.Expr))
    return [node for node in expressions if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def constants_named(file: Path) -> set[str]:
    """The names in the code of a file, and those in its texts, such as variables of an environment."""
    docstrings, found = set(texts_of_docstrings(file)), set[str]()
    for node in nodes(file):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and node not in docstrings and isinstance(node.value, (str, bytes)):
            found.update(CONSTANT.findall(str(node.value)))
    return found


@SOURCE
def test_every_constant_of_which_a_docstring_speaks_is_there() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    known = FOREIGN.union(*map(constants_named, files))
    gone = [
        f"{file.relative_to(PACKAGE)}:{text.lineno}: {name}"
        for file in files
        for text in texts_of_docstrings(file)
        for name in CONSTANT.findall(str(text.value))
        if name not in known
    ]
    assert gone == []


@SOURCE
def test_no_module_gives_one_name_to_two_values() -> None:
    """The second would win, also for what stands above it."""
    for file in PACKAGE.rglob("*.py"):
        given = [
            name.id
            for node in syntax_tree(file).body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            for name in ast.walk(target)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        ]
        assert sorted(set(given)) == sorted(given), file
