"""Ranks that never meet end a launch long before torch or JAX gives up, with who or what keeps them apart; ranks that
are only late are waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lab import Lab
from lab.cli import CliResult
from lab.jax_site import NoJax, jax_site

from .test_launch import EXAMPLE, launch, nothing_left, playbook
from .test_launch_jax import EXAMPLE as JAX_EXAMPLE

pytestmark = [pytest.mark.lab, pytest.mark.torch]

DROPS = "table inet f { chain i { type filter hook input priority 0; tcp dport 29500 drop; }; }"
DATA_PORTS = (
    "table inet f { chain i { type filter hook input priority 0; ip saddr 10.0.0.0/8 tcp dport 30000-65535 drop; }; }"
)
JOINS = {"torch": "        dist.init_process_group(", "jax": "    jax.distributed.initialize("}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as made:
        yield made


@pytest.fixture
def jax_lab() -> Iterator[Lab]:
    try:
        site = jax_site()
    except NoJax as error:
        pytest.skip(f"no JAX here: {error}")
    with Lab(2, sites=[site]) as made:
        yield made


def program(lab: Lab, before_joining: str, *, kind: str = "torch") -> None:
    """The example, with a line of each rank's before it joins."""
    text, joins = (EXAMPLE if kind == "torch" else JAX_EXAMPLE).read_text(), JOINS[kind]
    assert text.count(joins) == 1
    indent = " " * (len(joins) - len(joins.lstrip()))
    text = text.replace(joins, f"{indent}{before_joining}\n{joins}")
    lab.work_file("train.py", text)


def guilty(done: CliResult) -> dict[str, list[dict[str, Any]]]:
    outcomes = done.json()["stages"][-1]["outcomes"]
    return {one["node"]: one["findings"] for one in outcomes if one["verdict"] == "fail"}


@pytest.mark.parametrize(
    ("ruleset", "cause"),
    [(DROPS, "firewall-drop"), pytest.param(DATA_PORTS, "data-ports-blocked", marks=pytest.mark.thorough)],
)
def test_a_port_that_is_blocked_after_the_checks_is_named_with_its_rule(lab: Lab, ruleset: str, cause: str) -> None:
    program(lab, "pass")
    lab["node-a"].firewall(ruleset)
    done = launch(lab, playbook(lab, more=", rendezvous_timeout: 8s"), "-o", "json", node_a=1, node_b=1)
    assert done.returncode == 1, done
    found = guilty(done)
    assert list(found) == ["node-a"], done
    assert found["node-a"][0]["cause"] in (cause, "firewall-drop"), done
    assert "drop" in " ".join([found["node-a"][0]["says"], *found["node-a"][0]["evidence"]])
    nothing_left(lab)


@pytest.mark.thorough
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_sleeps_before_it_joins_is_named_with_its_place(lab: Lab, rank: int) -> None:
    program(lab, f"time.sleep(1000 if rank == {rank} else 0)")
    done = launch(lab, playbook(lab, more=", rendezvous_timeout: 8s"), "-o", "json", node_a=2, node_b=2)
    assert done.returncode == 1, done
    node = "node-a" if rank == 0 else "node-b"
    assert list(guilty(done)) == [node], done
    (finding,) = guilty(done)[node]
    assert finding["cause"] == "ranks-missing"
    assert f"rank {rank} on {node} has not come to the rendezvous: it sleeps in main (" in finding["says"]
    assert "3 of 4 wait for it" in finding["says"]
    nothing_left(lab)


@pytest.mark.thorough
def test_a_jax_process_that_sleeps_before_it_joins_is_named_with_its_place(jax_lab: Lab) -> None:
    program(jax_lab, "time.sleep(1000 if os.environ['RANK'] == '1' else 0)", kind="jax")
    file = playbook(jax_lab, more=", launcher: jax, rendezvous_timeout: 15s")
    done = launch(jax_lab, file, "-o", "json", node_a=1, node_b=1)
    assert done.returncode == 1, done
    assert list(guilty(done)) == ["node-b"], done
    (finding,) = guilty(done)["node-b"]
    assert finding["cause"] == "ranks-missing"
    assert "it sleeps in join (" in finding["says"]
    nothing_left(jax_lab)


def test_a_rank_that_works_before_it_joins_is_waited_for(lab: Lab) -> None:
    """As one that imports or compiles for long, and is looked at meanwhile."""
    program(lab, "while rank == 1 and time.process_time() < 20: pass")
    done = launch(lab, playbook(lab, "--steps, 3", ", rendezvous_timeout: 4s"), node_a=1, node_b=1)
    assert done.returncode == 0, done
    told = (lab.tmp / "run" / "events.jsonl").read_text()
    assert "rank 1 on node-b has not come to the rendezvous yet: it still works in main (" in told
    nothing_left(lab)
