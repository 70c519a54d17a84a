"""DDP training that is started from the page on hosts without any SSH: the server may die, and no rank notices."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from lab import Host, runbook_cli
from lab.agents import AgentLab
from lab.lab import CHECKOUT
from lab.processes import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.thorough]
STEPS = 150


@pytest.fixture
def lab() -> Iterator[AgentLab]:
    with AgentLab(2) as made:
        shutil.copy(CHECKOUT / "examples" / "train_ddp.py", made.shared / "train_ddp.py")
        yield made


class Page:
    """A person who is logged in to the lab's server, and presses buttons."""

    def __init__(self, lab: AgentLab) -> None:
        self._host = f"{lab.bridge_address}:{lab.port}"
        self._origin = f"https://{self._host}"
        link = runbook_cli(
            lab, "serve", "--data", lab.data, "user", "link", "ann", "--url", self._origin
        ).stdout.strip()
        status, headers, _ = self._ask("POST", link.removeprefix(self._origin), {"Origin": self._origin})
        assert status == 303
        self._cookie = headers["set-cookie"].partition(";")[0]

    def _ask(self, method: str, path: str, headers: dict[str, str], body: str = "") -> tuple[int, dict[str, str], str]:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(self._host, timeout=60, context=context)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read().decode()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, text
        finally:
            connection.close()

    def get(self, path: str) -> str:
        status, _, text = self._ask("GET", path, {"Cookie": self._cookie})
        assert status == 200, text
        return text

    def press(self, path: str, **fields: str) -> str:
        """Send the form that is at this path; the last word of where that leads."""
        found = re.search(r'name="csrf" value="([^"]+)"', self.get("/groups/train"))
        assert found is not None
        kind = "application/x-www-form-urlencoded"
        headers = {"Cookie": self._cookie, "Origin": self._origin, "Content-Type": kind}
        status, answer, text = self._ask("POST", path, headers, urlencode({"csrf": found[1], **fields}))
        assert status == 303, text
        return answer["location"].rpartition("/")[2]

    def run(self, id: str) -> Any:
        return json.loads(self.get(f"/api/v1/runs/{quote(id)}"))


def group(lab: AgentLab, *options: str) -> None:
    command = [lab.python, "/shared/train_ddp.py", "--steps", str(STEPS), *options]
    made = lab.inventory("train.yml", defaults={"processes": 2}, launch={"command": command, "grace": "10s"})
    (lab.data / "groups").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(made, lab.data / "groups" / "train.yml")


def ranks(lab: AgentLab, host: Host) -> list[int]:
    return sorted(
        pid for pid, command in host.processes(lab.user) if command.startswith(lab.python) and "train_ddp" in command
    )


def trained(lab: AgentLab, page: Page, id: str) -> dict[str, list[int]]:
    """Wait until the ranks run by themselves; their process ids."""
    wait_until("the launch is left to itself", (lab.data / "runs" / id / "follower.json").exists, timeout=300)
    found = {host.name: ranks(lab, host) for host in lab}
    assert [len(pids) for pids in found.values()] == [2, 2], page.run(id)
    return found


def test_the_server_is_killed_in_the_middle_and_no_line_is_lost(lab: AgentLab) -> None:
    group(lab, "--pause", "0.3")
    page = Page(lab)
    id = page.press("/groups/train/start")
    before = trained(lab, page, id)
    lab.kill_server()
    assert {host.name: ranks(lab, host) for host in lab} == before
    lab.server = lab.serve()
    lab.await_online(*lab.names)
    page = Page(lab)
    assert {host.name: ranks(lab, host) for host in lab} == before
    assert page.run(id)["running"]
    wait_until("the page tells the end", lambda: page.run(id)["verdict"], timeout=300)
    told = page.run(id)
    assert told["verdict"] == "pass", told
    (file,) = (lab.data / "runs" / id / "logs" / "attempt-01").glob("rank-0*0.*.out")
    told_losses = re.findall(r"^step ([0-9]+) loss ([0-9.]+)$", file.read_text(), re.MULTILINE)
    assert [int(step) for step, _ in told_losses] == list(range(STEPS))
    losses = [float(loss) for _, loss in told_losses]
    assert sum(losses[-20:]) < sum(losses[:20])


def test_stop_and_restart_from_the_page(lab: AgentLab) -> None:
    group(lab, "--pause", "5")
    page = Page(lab)
    id = page.press("/groups/train/start")
    first = trained(lab, page, id)
    page.press(f"/runs/{id}/restart")
    wait_until("the first run has ended", lambda: page.run(id)["verdict"], timeout=300)

    def runs() -> list[str]:
        return sorted(path.name for path in (lab.data / "runs").iterdir())

    wait_until("it is started again", lambda: len(runs()) == 2, timeout=120)
    again = next(name for name in runs() if name != id)
    second = trained(lab, page, again)
    assert not {*first["node-a"]} & {*second["node-a"]}
    page.press("/groups/train/stop")
    wait_until("the page tells the end", lambda: page.run(again)["verdict"], timeout=300)
    assert page.run(again)["causes"] == ["terminated-from-outside"]
    for host in lab:
        wait_until("no rank is left", lambda host=host: ranks(lab, host) == [], timeout=60)  # type: ignore[misc]


TELL = 'echo "told $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $MASTER_ADDR $(hostname)"'


@pytest.mark.parametrize(
    ("names", "processes", "table"),
    [
        (("gn7", "gn40", "gn39", "gn6"), 1, ["gn6-0 0 0 0", "gn39-0 1 0 1", "gn40-0 2 0 2", "gn7-0 3 0 3"]),
        (("gn7", "gn6"), 2, ["gn6-0 0 0 0", "gn6-1 1 1 0", "gn7-0 2 0 1", "gn7-1 3 1 1"]),
    ],
    ids=["four nodes", "two workers a node"],
)
def test_the_rank_table_of_the_page_is_what_the_processes_get(
    names: tuple[str, ...], processes: int, table: list[str]
) -> None:
    """The names in the order of the alphabet, the master first."""
    with AgentLab(names=names) as lab:
        made = lab.inventory(
            "train.yml",
            order="alphabet",
            rendezvous={"master": "gn6"},
            defaults={"processes": processes},
            launch={"command": ["sh", "-c", TELL], "launcher": "direct"},
        )
        (lab.data / "groups").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(made, lab.data / "groups" / "train.yml")
        page = Page(lab)
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page.get("/groups/train"), re.DOTALL)
        cells = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]
        assert [row for row in table if any(row in cell for cell in cells)] == table, cells
        id = page.press("/groups/train/start")
        wait_until("the page tells the end", lambda: page.run(id)["verdict"], timeout=300)
        assert page.run(id)["verdict"] == "pass", page.run(id)
        said = "".join(file.read_text() for file in (lab.data / "runs" / id / "logs").rglob("*.out"))
        master = lab["gn6"].address
        assert sorted(re.findall("^told (.*)$", said, re.MULTILINE)) == [
            f"{rank} {local} {node} 4 {master} {worker.partition('-')[0]}"
            for worker, rank, local, node in (row.split() for row in table)
        ]


def test_a_run_whose_checks_ended_with_the_server_begins_again(lab: AgentLab) -> None:
    group(lab, "--pause", "0.1")
    page = Page(lab)
    id = page.press("/groups/train/start")
    events = lab.data / "runs" / id / "events.jsonl"
    wait_until("the checks run", lambda: events.exists() and '"check": "port"' in events.read_text(), timeout=120)
    lab.kill_server()
    wait_until(
        "the run has ended",
        lambda: (lab.data / "runs" / id / "result.json").exists(),
        timeout=120,
    )
    assert json.loads((lab.data / "runs" / id / "result.json").read_text())["causes"] == ["server-gone"]
    lab.server = lab.serve()
    page = Page(lab)
    assert page.run(id)["running"]
    wait_until("the page tells the end", lambda: page.run(id)["verdict"], timeout=400)
    assert page.run(id)["verdict"] == "pass", page.run(id)
