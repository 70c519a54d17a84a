"""A node falls silent and the ranks fail: a spare takes its place, and what lives there is ended once it is heard again."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator

import pytest
from lab import Host
from lab.agents import AgentLab
from lab.processes import wait_until

from .test_from_the_page import Page

pytestmark = [pytest.mark.lab, pytest.mark.thorough]
COUNTS = """\
import itertools, time
for number in itertools.count(1):
    print("line", number, flush=True)
    time.sleep(0.1)
"""
SOON_S = 400


@pytest.fixture
def lab() -> Iterator[AgentLab]:
    with AgentLab(3) as made:
        (made.shared / "counts.py").write_text(COUNTS)
        yield made


def ranks(lab: AgentLab, host: Host) -> list[int]:
    return [pid for pid, command in host.processes(lab.user) if command == f"{lab.python} /shared/counts.py"]


def test_a_spare_comes_for_a_silent_node_whose_ranks_are_ended_when_it_is_back(lab: AgentLab) -> None:
    launch = {"command": [lab.python, "/shared/counts.py"], "grace": "5s", "retries": 1, "spares": ["node-c"]}
    made = lab.inventory("train.yml", defaults={"processes": 1}, launch=launch)
    (lab.data / "groups").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(made, lab.data / "groups" / "train.yml")
    page = Page(lab)
    id = page.press("/groups/train/start", only="launch")
    folder = lab.data / "runs" / id
    wait_until("it runs by itself", (folder / "follower.json").exists, timeout=SOON_S)
    a, b, c = lab
    first = [*ranks(lab, a), *ranks(lab, b)]
    assert (len(first), ranks(lab, c)) == (2, [])
    b.cut()
    a.signal(first[0], signal.SIGKILL)  # as where a rank fails for want of its peer
    wait_until("the spare has a rank", lambda: bool(ranks(lab, c)), timeout=SOON_S)
    assert ranks(lab, b) == first[1:]  # nobody could end it
    b.restore()
    wait_until("what ran there is ended", lambda: not ranks(lab, b), timeout=SOON_S)
    assert page.run(id)["running"]
    assert len(ranks(lab, a)) == len(ranks(lab, c)) == 1

    def shown() -> set[str]:
        fleet = json.loads(page.get("/api/v1/fleet"))["nodes"]
        return {node["name"] for node in fleet if node["ranks"]}

    wait_until("the page shows who has ranks", lambda: shown() == {"node-a", "node-c"}, timeout=SOON_S)
    page.press("/groups/train/stop")
    wait_until("the page tells the end", lambda: page.run(id)["verdict"], timeout=SOON_S)
    wait_until("only agents are left", lambda: all(len(h.processes(lab.user)) <= 1 for h in lab), timeout=SOON_S)
    (log,) = (folder / "logs" / "attempt-01").glob("rank-00001.*.out")
    lines = log.read_text().splitlines()
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
    assert len(lines) > 600, "what it wrote while it was silent is here as well"
