"""Node programs as they are sent: the same programs, with nothing left out but what is for readers, and nothing
missing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from profiles import one_in

from runbook.node import __file__ as node_room
from runbook.transport import node_programs
from runbook.transport.node_answers import ANSWER_TYPES, PROGRAM_MESSAGES

NAMES = sorted(file.stem for file in Path(node_room).parent.glob("*.py") if file.stem != "__init__")
CALLED = sorted({name.partition(" ")[0] for name in ANSWER_TYPES})


class Bare(ast.NodeTransformer):
    """What Python runs of a source: no texts that stand alone, nothing for type checkers."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def places(source: str) -> list[tuple[str, int]]:
    """Every expression with its line."""
    tree = Bare().visit(ast.parse(source, feature_version=(3, 8)))
    return [(ast.dump(node), node.lineno) for node in ast.walk(tree) if isinstance(node, ast.expr)]


@pytest.mark.parametrize("name", one_in(3, NAMES))
def test_only_what_is_for_readers_is_left_out(name: str) -> None:
    source = node_programs.program_source(name).decode()
    assert places(node_programs._stripped_source(name)) == places(source)
    assert node_programs._stripped_source(name).count("\n") == source.count("\n")


@pytest.mark.parametrize("name", CALLED)
def test_a_called_program_runs_with_what_comes_along_and_what_the_supervisor_carries(name: str) -> None:
    """In a Python that finds nothing of ours."""
    carried = node_programs.standalone_program(node_programs.SUPERVISOR_MODULE).decode().rpartition("\nexec(")[0]
    sent = json.loads(node_programs.in_supervisor_program(name))
    assert list(sent)[-1] == name
    code = (
        carried
        + f"""
import types
for name, text in {sent!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
assert callable(module.look)
"""
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_is_started_is_one_file() -> None:
    for name in (*PROGRAM_MESSAGES, "keeper", node_programs.SUPERVISOR_MODULE):
        ast.parse(node_programs.standalone_program(name), feature_version=(3, 8))
        assert b"ModuleType" in node_programs.standalone_program(name)


def test_a_program_that_needs_nothing_of_ours_is_sent_as_it_is() -> None:
    for name in ("rank", "rank_bandwidth", "stack_on_signal"):
        assert node_programs.standalone_program(name) == node_programs.program_source(name)
