"""No file keeps `lint` longer than its size explains, nor breaks it.

What one costs is CPU time beside that of an ordinary file as large, in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from profiles import one_in

from runbook.lint.findings import REPORT_FORMATS
from runbook.lint.run import lint
from runbook.model.errors import FilesWrong

SIZE = 150_000  # characters; a quadratic cost of any weight shows itself
MOST = 12  # times what the ordinary file takes
HEAD = "nodes:\n  node-a: {address: 10.0.0.1}\n"
FLEET = "nodes: {'n[1-9999]': }\ngroups: {g: {nodes: ["
PLAYBOOK = "nodes: all\nstages:\n"


def many(text: str) -> str:
    return text * (SIZE // len(text))


def numbered(line: str) -> str:
    return "".join(line.replace("@", str(number)) for number in range(SIZE // (len(line) + 4)))


ORDINARY = "nodes:\n" + numbered("  node@: {address: host@.example.org}\n")
FILES: dict[str, Callable[[], str]] = {
    "comments above": lambda: many("# a paragraph\n\n") + HEAD,
    "blank lines above": lambda: many("\n") + HEAD,
    "one line of spaces": lambda: many(" ") + "\n" + HEAD,
    "one long word": lambda: many("a"),
    "a long key": lambda: HEAD + "? " + many("k") + "\n: 1\n",
    "a long list on one line": lambda: HEAD + "vars: {x: [" + many("a, ") + "b]}\n",
    "a long list of tagged values": lambda: HEAD + "vars: [" + many("!a b, ") + "]\n",
    "many unknown keys": lambda: HEAD + numbered("key@: 1\n"),
    "many unknown keys in a node": lambda: "nodes:\n  a:\n" + numbered("    key@: 1\n"),
    "many duplicate keys": lambda: "nodes:\n" + many("  n: {}\n"),
    "deep brackets": lambda: many("["),
    "deep mappings": lambda: many("{a: "),
    "deep dashes": lambda: many("- "),
    "many anchors": lambda: "vars:\n" + numbered("  k@: &a@ 1\n") + HEAD,
    "many aliases": lambda: "vars:\n  k: &a [1]\n  l: [" + many("*a, ") + "]\n" + HEAD,
    "many documents": lambda: many("---\na: 1\n"),
    "many silences": lambda: "nodes:\n" + numbered("  n@: {} # noqa\n"),
    "a range of a thousand million": lambda: "nodes:\n  n[1-999999999]: {}\n",
    "many ranges": lambda: "nodes:\n" + numbered("  n@[1-9999]: {}\n"),
    "many addresses that are none": lambda: "nodes:\n" + numbered("  n@: {address: a b}\n"),
    "one address many times": lambda: "nodes:\n" + numbered("  n@: {address: 10.0.0.1}\n"),
    "many groups": lambda: HEAD + "groups:\n" + numbered("  g@: [node-a]\n"),
    "ranges of a group": lambda: FLEET + numbered("'n[1-9999]@', ") + many("'n[1-9999]', ") + "n1]}}\n",
    "unknown members of a group": lambda: FLEET + numbered("m@, ") + "n1]}}\n",
    "empty nodes": lambda: "nodes:\n" + numbered("  n@:\n"),
    "many stages": lambda: PLAYBOOK + many("  - check: ping\n"),
    "many stages that are none": lambda: PLAYBOOK + many("  - chek: ping\n"),
    "stages of one name": lambda: PLAYBOOK + many("  - name: x\n    check: ping\n"),
    "many templates": lambda: PLAYBOOK + "  - shell: |\n      " + many("{{ x }} ") + "\n",
    "a template of brackets": lambda: PLAYBOOK + '  - shell: "{{ ' + many("(") + ' }}"\n',
    "unfinished templates": lambda: PLAYBOOK + "  - shell: |\n      " + many("{% if x %}") + "\n",
    "variables of variables": lambda: PLAYBOOK + "  - check: ping\nvars:\n" + numbered("  v@: '{{ w@ }}'\n"),
    "a host list": lambda: many("n[1-3],"),
    "a hostfile": lambda: many("node-a slots=8\n"),
    "an INI file": lambda: "[a]\n" + many("node-a ansible_host=10.0.0.1\n"),
    "quotes": lambda: many('"'),
    "a quote that is never closed": lambda: '"' + many("a\n"),
    "silences of no rule": lambda: "nodes:\n" + numbered("  n@: {} # noqa: no-rule-@\n"),
    "silences one below the other": lambda: HEAD + many("# noqa\n"),
    "silences on one line": lambda: HEAD + many("# noqa: x ") + "\n",
    "truth words on one line": lambda: HEAD + "vars: {x: [" + many("yes, ") + "b]}\n",
    "odd numbers": lambda: "nodes:\n" + numbered("  @: {}\n"),
    "secrets on one line": lambda: HEAD + "vars: {" + numbered("TOKEN@: ghp_abcdefabcdefabcdefabcdef@, ") + "b: x}\n",
    "templates of an environment": lambda: (
        PLAYBOOK + "  - shell: echo\n    env: {" + numbered("A@: '{{ x@ }}', ") + "B: x}\nvars: {x: 1}\n"
    ),
    "one GPU many times": lambda: "nodes:\n  a: {gpus: [" + many("0, ") + "0]}\n",
    "groups that are none": lambda: HEAD + "groups: {" + numbered("g@: {a: 1}, ") + "}\n",
    "a colon that joins": lambda: HEAD + "vars: {" + many("a") + ":b: c}\n",
    "a number to the base 60": lambda: HEAD + "vars: {x: " + many("1:") + "1}\n",
    "templates of a command": lambda: (
        "vars: {x: 1}\n" + PLAYBOOK + "  - launch: {command: [" + many("'{{ x }}', ") + "b]}\n"
    ),
    "digits": lambda: HEAD + "vars: {x: " + many("1") + "}\n",
}


def linted(folder: Path, text: str) -> None:
    file = folder / ("playbooks" if "stages:" in text else "inventories") / "x.yml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    with suppress(FilesWrong):
        REPORT_FORMATS["text"](lint([str(file)]))


def cost(folder: Path, text: str) -> float:
    """Seconds of CPU."""
    begun = time.process_time()
    linted(folder, text)
    return time.process_time() - begun


@pytest.mark.parametrize("name", one_in(9, FILES))
def test_it_is_linted(tmp_path: Path, name: str) -> None:
    linted(tmp_path, FILES[name]())


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> float:
    folder = tmp_path_factory.mktemp("ordinary")
    cost(folder, HEAD)  # what is loaded and compiled once
    cost(folder, PLAYBOOK + "  - chek: ping\n")
    return max(cost(folder, ORDINARY) for _ in range(2))


@pytest.mark.cost
@pytest.mark.parametrize("name", FILES)
def test_it_takes_no_more_than_its_size_explains(tmp_path: Path, ordinary: float, name: str) -> None:
    took = cost(tmp_path, FILES[name]())
    assert took < MOST * ordinary, f"{took:.2f} s, and an ordinary file as large {ordinary:.2f} s"
