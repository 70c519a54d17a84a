"""No file keeps `inventory import` longer than its size explains, nor breaks it.

What one costs is CPU time beside that of an ordinary file as large.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from runbook.files.inventory_draft import draft_text
from runbook.importers.convert import draft_of_foreign_inventory, read_foreign_inventory
from runbook.model.errors import FilesWrong

SIZE = 150_000
MOST = 12
HEAD = "#!/bin/bash\n#SBATCH --nodelist=gn[1-2]\n"


def many(text: str) -> str:
    return text * (SIZE // len(text))


FILES: dict[str, Callable[[], str]] = {
    "a long list of nodes": lambda: "#!/bin/bash\n#SBATCH --nodelist=" + many("gn1,") + "x\ntorchrun x.py\n",
    "a list of open brackets": lambda: "#!/bin/bash\n#SBATCH --nodelist=" + many("[") + "\ntorchrun x.py\n",
    "a long host list": lambda: many("gn1,"),
    "a variable that doubles": lambda: HEAD + "A=xxxxxxxxxx\n" + many("A=$A$A\n") + "torchrun $A x.py\n",
    "an array that is not closed": lambda: HEAD + "A=(\n" + many("x\n") + "torchrun x.py\n",
    "a line that goes on and on": lambda: HEAD + many("x \\\n") + "\ntorchrun x.py\n",
    "one long line": lambda: HEAD + many("torch.distributed.") + "\n",
    "a long launch": lambda: HEAD + "torchrun " + many("--a=b ") + "x.py\n",
    "dollars": lambda: HEAD + many("$") + "\n" + many("${A") + "\ntorchrun x.py\n",
    "a long line of an Ansible host": lambda: "[g]\nn1 " + many("a=b ") + "\n",
    "a host line of quotes": lambda: "[g]\nn1 x=" + many("'b' ").replace(" ", "") + "\n",
    "quotes": lambda: HEAD + many("'\"") + "\ntorchrun x.py\n",
}


def imported(text: str) -> None:
    with suppress(FilesWrong):
        draft_text(draft_of_foreign_inventory(read_foreign_inventory(text, "file", None), "name"))


def cost(text: str) -> float:
    """Seconds of CPU."""
    begun = time.process_time()
    imported(text)
    return time.process_time() - begun


@pytest.mark.parametrize("name", FILES)
def test_it_is_imported_or_refused(name: str) -> None:
    imported(FILES[name]())


@pytest.mark.cost
@pytest.mark.parametrize("name", FILES)
def test_its_cost_is_in_proportion(name: str) -> None:
    ordinary = min(cost(HEAD + many("export A=b\n") + "torchrun x.py\n") for _ in range(2))
    assert cost(FILES[name]()) <= MOST * ordinary + 0.1


@pytest.mark.parametrize(
    "line",
    [
        "{}[1-9000] slots=8\n",
        "{}[1-9000]:8\n",
        "#SBATCH --nodelist={}[1-9000]\n",
        "{}[1-9000],",
        "{}[1:9000] ansible_user=x\n",
    ],
)
@pytest.mark.parametrize("beyond", [False, True])
def test_no_file_stands_for_more_hosts_than_an_inventory_may_hold(line: str, beyond: bool) -> None:
    text = "".join(line.format(f"{letter}n") for letter in "abc"[: 2 + beyond])
    if "SBATCH" in line:
        text = "#SBATCH --nodelist=" + ",".join(f"{letter}n[1-9000]" for letter in "abc"[: 2 + beyond]) + "\n"
    if not beyond:
        assert len(read_foreign_inventory(text, "file", None).hosts) == 18_000
        return
    with pytest.raises(FilesWrong) as wrong:
        read_foreign_inventory(text, "file", None)
    assert wrong.value.problems[0].id == "import.too-many-nodes"


def test_a_variable_that_doubles_stays_short() -> None:
    text = HEAD + "A=xxxxxxxxxx\n" + "export A=$A$A\n" * 60 + "torchrun x.py\n"
    assert len(str(read_foreign_inventory(text, "file", None))) < 2_000_000
