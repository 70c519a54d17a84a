"""What is recorded is what was said, and tells nothing of the machine that it was recorded on."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from lab import Lab
from lab.lab import CHECKOUT

from .hostile_run import attack
from .record import NOBODYS_UUID, SCENES, UUID, neutral, only_of_the_lab
from .recorded_node import FOLDER, Json, RecordedNode, Recording, recording, recordings
from .wiretap import Said, Tapped

ANYBODYS = re.compile(
    r"/(?:home/rblab|opt/runbook-lab|tmp/(?:survey|collect)-[0-9a-f]{8}|usr|etc|proc|sys|dev|bin|sbin|root|run/(?:dbus|xtables)"
    r"|var/run/dbus)(?:/|\Z)"
)
PATH = re.compile(r"(?<![\w.:/+=~-])/(?:[\w.+-]+/)+[\w.+-]+")


@pytest.mark.parametrize("name", ["job_ps", "job_stop", "inventory_init", "firewall_iptables_nft"])
def test_what_passes_is_heard_as_it_was_said(name: str, tmp_path: Path) -> None:
    """A recording of a recording is that recording, as far as it was asked for."""
    said: dict[str, Said] = defaultdict(lambda: defaultdict(list))
    tapped: list[Tapped] = []

    def make(found: Recording, node: str) -> Tapped:
        tapped.append(Tapped(RecordedNode(found.said[node]), said[node]))
        return tapped[-1]

    found = recording(name)
    done = attack(found, make, tmp_path)
    assert (done.complaint(), done.code) == (None, found.code), str(done)
    for one in tapped:
        one.programs_are_over()
    for node in found.nodes:
        assert set(said[node]) == set(found.said[node])
        for program, answers in said[node].items():
            assert _of(program, answers) == _of(program, found.said[node][program][: len(answers)]), program


def _of(program: str, answers: list[Json]) -> list[Json]:
    """Of a program that runs, what it said before the other side had heard enough."""
    return [one[:1] for one in answers] if program in ("mesh", "rank", "keeper") else answers


@pytest.mark.parametrize("name", recordings())
def test_a_recording_is_of_no_machine_in_particular(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text()
    assert set(UUID.findall(text)) <= {NOBODYS_UUID}
    assert {path for path in PATH.findall(text) if not ANYBODYS.match(path)} == set()
    here = os.uname()
    assert here.release not in text
    assert not re.search(rf"(?<![\w.-]){re.escape(here.nodename)}(?![\w.-])", text)


def test_what_is_this_machines_is_left_out(tmp_path: Path) -> None:
    lab = Lab(2)
    lab.tmp, lab.subnet = tmp_path, IPv4Network("10.93.7.0/24")
    here = os.uname()
    boot_id = "c0ffee00-1234-4abc-9def-0123456789ab"
    said = {
        "path": f"{tmp_path}/home/.ssh/id",
        "source": f"{CHECKOUT}/runbook",
        "address": "10.93.7.2",
        "kernel": here.release,
        "host": f"{here.nodename}",
        "machine": f"{boot_id} net:[1]",
    }
    assert json.loads(neutral(json.dumps(said), lab)) == {
        "path": "/home/rblab/home/.ssh/id",
        "source": "/opt/runbook/runbook",
        "address": "10.77.0.2",
        "kernel": "6.1.0-18-amd64",
        "host": "controller",
        "machine": f"{NOBODYS_UUID} net:[1]",
    }
    tool = {"name": "system/disks", "out": "/dev/sda1 /secret\n", "err": ""}
    halt = {"kernel_says": ["oom"], "busy": [{"pid": 1, "user": "me", "command": "/secret", "cpu": 1.0}]}
    told: dict[str, list[Json]] = {
        "rank_processes": [halt, None],
        "collect": [{"users": [["me", "/home/me", "Me"], ["rblab", "/home/rblab", ""]], "hostnames": ["mine", "node-a"], "answers": [tool]}],
        "rank": [[{"event": "beat"}, {"event": "beat"}, {"event": "step"}]],
    }  # fmt: skip
    only_of_the_lab(told, lab)
    assert "secret" not in json.dumps(told)
    assert told["collect"][0]["users"] == [["rblab", "/home/rblab", ""]]
    assert told["collect"][0]["hostnames"] == ["node-a"]
    assert told["rank"] == [[{"event": "beat"}, {"event": "step"}]]


def test_every_recording_can_be_made_anew() -> None:
    made = {name for name in recordings() if not name.startswith("job_")}
    assert made | {"jobs"} == set(SCENES)
