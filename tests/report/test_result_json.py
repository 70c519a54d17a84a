from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from runbook.model.events import Event, OutcomeReached, StageStarted
from runbook.model.secrets import Secret
from runbook.model.verdict import Outcome
from runbook.report.run_json import Result

from .made_up_runs import PAIR, STORIES, Story, broken_off, continued, firewall, interrupted
from .strategies import RUNS, UNHURRIED


def document(events: list[Event]) -> dict[str, Any]:
    result = Result()
    for event in events:
        result(event)
    told: dict[str, Any] = json.loads(result.text())
    assert told == result.document()
    return told


def test_the_document_is_the_contracts() -> None:
    told = document(firewall())
    assert {key: value for key, value in told.items() if key not in ("stages", "seconds")} == {
        "version": 1,
        "run_id": "20261121-023000",
        "playbook": "two-node AllReduce",
        "inventory": "inventories/two_node.yml",
        "verdict": "fail",
        "exit_code": 1,
        "stopped_at": "firewall",
        "causes": ["firewall-drop"],
        "not_run": ["ibstat", "connection", "small AllReduce"],
        "nodes": {"all": ["node-a", "node-b"], "bad": [], "dropped": [], "unknown": []},
        "not_dropped": None,
        "run_dir": ".runbook/runs/20261121-023000",
        "cleaned": None,
    }
    assert told["seconds"] == pytest.approx(3.5)
    assert told["stages"][2] == {
        "name": "firewall",
        "check": "firewall",
        "verdict": "fail",
        "seconds": 2.2,
        "silent": [],
        "outcomes": [
            {
                "node": "node-a",
                "verdict": "fail",
                "proof": None,
                "metrics": {},
                "warnings": [],
                "findings": [
                    {
                        "cause": "firewall-drop",
                        "says": "node-a drops TCP 29500 from node-b (10.0.0.2): nft rule inet filter input handle 7",
                        "remedy": "sudo nft insert rule inet filter input position 7 "
                        "ip saddr 10.0.0.2 tcp dport 29500 accept",
                        "remedy_commands": [
                            {
                                "node": "node-a",
                                "command": "sudo nft insert rule inet filter input position 7 "
                                "ip saddr 10.0.0.2 tcp dport 29500 accept",
                            }
                        ],
                        "evidence": ["node-b → 10.0.0.1:29500: no answer in 2.0 s (3 SYN)", "tcp dport 29500 drop"],
                        "peers": ["node-b"],
                    }
                ],
            },
            {
                "node": "node-b",
                "verdict": "pass",
                "proof": "4 ports open from 1 peer",
                "metrics": {},
                "warnings": [],
                "findings": [],
            },
        ],
    }


CONTRACT = {"version", "run_id", "playbook", "inventory", "verdict", "exit_code", "stopped_at", "seconds", "causes"}


@UNHURRIED
@given(RUNS)
def test_every_key_is_always_there(events: list[Event]) -> None:
    told = document(events)
    assert told.keys() >= CONTRACT | {"stages", "not_run"}
    for stage in told["stages"]:
        assert stage.keys() >= {"name", "check", "verdict", "seconds", "outcomes"}
        for outcome in stage["outcomes"]:
            assert outcome.keys() >= {"node", "verdict", "proof", "metrics", "findings"}
            for finding in outcome["findings"]:
                assert finding.keys() == {"cause", "says", "remedy", "remedy_commands", "evidence", "peers"}


@pytest.mark.parametrize("cut", range(len(firewall())))
def test_a_run_without_its_end_is_unknown_and_our_bug(cut: int) -> None:
    told = document(firewall()[:cut])
    assert (told["verdict"], told["exit_code"]) == ("unknown", 70)
    assert not any(stage["verdict"] == "pass" and stage["silent"] for stage in told["stages"])


def test_a_crash_still_names_what_was_found() -> None:
    told = document(broken_off())
    assert (told["stopped_at"], told["causes"]) == ("firewall", ["firewall-drop"])
    assert told["stages"][-1]["verdict"] == "fail"


def test_an_interrupt_names_who_had_not_answered() -> None:
    told = document(interrupted())
    assert told["exit_code"] == 130
    assert told["cleaned"] == "4 processes on node-[a-b] stopped, folders removed"
    assert told["stages"][-1]["silent"] == ["node-b"]
    assert told["stages"][-1]["verdict"] == "unknown"


def test_the_root_cause_stands_first() -> None:
    assert document(continued())["causes"] == ["mtu-blackhole", "ranks-missing"]


def test_a_stage_may_run_twice_under_one_name() -> None:
    story = Story(PAIR, "ping", "ping", "ping")
    story.step("ping", 1.0, Outcome.passed("node-a", "once")).step("ping", 2.0, Outcome.passed("node-a", "twice"))
    told = document(story.events)
    assert [stage["outcomes"][0]["proof"] for stage in told["stages"]] == ["once", "twice"]
    assert told["not_run"] == ["ping"]


def test_a_secret_in_the_metrics_stays_one() -> None:
    outcome = Outcome.passed("node-a", "fine", metrics={"token": Secret("hunter2", "env"), "rate": float("inf")})
    told = document([StageStarted(0, "s", "s", PAIR), OutcomeReached(1, "s", outcome)])
    assert told["stages"][0]["outcomes"][0]["metrics"] == {"token": "***", "rate": None}


@pytest.mark.parametrize("story", STORIES)
def test_every_story_has_a_document(story: str) -> None:
    assert document(STORIES[story]())["version"] == 1
