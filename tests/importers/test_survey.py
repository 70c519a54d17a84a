"""What `inventory init` writes of hosts that did not answer all of its questions, and how long it waits for many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.files.inventory import examine_inventory
from runbook.files.inventory_draft import draft_text
from runbook.files.yaml_document import parse_document
from runbook.importers import survey
from runbook.importers.survey import HostAnswers, Login, SurveyResult, parse_hosts
from runbook.importers.survey_draft import draft_of_survey
from runbook.model.inventory import Inventory, Node
from runbook.transport.node_answers import (
    HOST_FACTS_PROGRAM,
    IBSTAT_PROGRAM,
    PYTHONS_PROGRAM,
    ROUTE_PROGRAM,
    SURVEY_PROGRAM,
)
from runbook.transport.remote_program import ProgramNotStarted

SAID: dict[str, dict[str, Any]] = {
    HOST_FACTS_PROGRAM: {"interfaces": {"eth0": {"addresses": ["10.0.0.7"], "state": "UP", "mtu": 1500}}},
    SURVEY_PROGRAM: {
        "login": None,
        "speeds": {},
        "nvidia_smi": {"code": 0, "out": "0, GPU-1, NVIDIA H100, 81559, 4\n", "err": ""},
        "nvidia_devices": 1,
    },
    IBSTAT_PROGRAM: {"ibstat": {"out": ""}, "sysfs": None},
    PYTHONS_PROGRAM: {"pythons": [{"path": "/usr/bin/python3", "version": "3.11.7", "torch": "2.6.0", "cuda": "12.4"}]},
    survey.ROUTES: {"targets": []},
}
"""By a host with one GPU, to each question."""
ABOUT: dict[str, str] = {
    HOST_FACTS_PROGRAM: "interfaces",
    SURVEY_PROGRAM: "GPUs",
    IBSTAT_PROGRAM: "InfiniBand ports",
    PYTHONS_PROGRAM: "Pythons",
    survey.ROUTES: "routes",
}


class MadeUpSite:
    """Hosts that answer at once, but for what each leaves open; `waits`: how many were asked, how long all
    may take, and how long each may."""

    def __init__(self, forks: int, silent: Mapping[str, Iterable[str]], error: BaseException) -> None:
        self.forks, self.silent, self.error = forks, silent, error
        self.sessions: dict[str, MadeUpSession] = {}
        self.failures: dict[str, Any] = {}
        self.waits: list[tuple[int, float, set[float]]] = []

    def open(self, nodes: Iterable[Node]) -> None:
        self.sessions = {node.name: MadeUpSession(self, node.name) for node in nodes}

    def each(self, nodes: list[Node], work: Callable[[Node], Any], *, timeout_s: float) -> dict[str, Any]:
        self.waits.append((len(nodes), timeout_s, set()))
        found: dict[str, Any] = {}
        for node in nodes:
            try:
                found[node.name] = work(node)
            except (TimeoutError, ProgramNotStarted) as error:
                found[node.name] = error
        return found

    def close(self) -> None:
        pass


class MadeUpSession:
    def __init__(self, site: MadeUpSite, name: str) -> None:
        self.site, self.name, self.hello = site, name, {"machine": name, "hostname": name}

    def call(self, program: str, _arguments: object, *, timeout_s: float) -> Any:
        self.site.waits[-1][2].add(timeout_s)
        asked = survey.ROUTES if program == ROUTE_PROGRAM else program
        if asked in self.site.silent.get(self.name, ()):
            raise self.site.error
        return SAID[asked]


def surveyed(
    names: list[str], silent: Mapping[str, Iterable[str]], error: BaseException, *, forks: int = 64
) -> tuple[SurveyResult, MadeUpSite, str]:
    """The answers, the site, and the inventory that is written of them."""
    site = MadeUpSite(forks, silent, error)
    hosts = parse_hosts(names, Login())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(survey, "Site", lambda _id, forks: site)
        found = survey.survey_hosts(hosts, forks=forks)
    return found, site, draft_text(draft_of_survey(hosts, found, "made"))


def loaded(text: str) -> Inventory:
    found = examine_inventory(parse_document(text, "made.yml"), environ={})
    assert not found.problems, (text, found.problems)
    assert found.inventory is not None
    return found.inventory


@given(st.integers(2, 300), st.integers(1, 64))
def test_each_host_gets_its_whole_time_however_many_there_are(count: int, forks: int) -> None:
    _, site, _ = surveyed([f"n[1-{count}]"], {}, TimeoutError(), forks=forks)
    assert len(site.waits) == len(SAID)
    for asked, for_all, each in site.waits:
        assert asked == count
        assert for_all >= max(each) * -(-count // forks), (for_all, each)


@given(
    st.dictionaries(st.integers(1, 9).map("n{}".format), st.sets(st.sampled_from(sorted(ABOUT)), min_size=1)),
    st.sampled_from(
        [TimeoutError("no result"), ProgramNotStarted({"text": "No space left on device", "path": "/tmp"})]
    ),
)
def test_what_was_not_answered_is_said_and_nothing_is_made_of_it(
    silent: dict[str, set[str]], error: BaseException
) -> None:
    _, _, text = surveyed(["n[1-9]"], silent, error)
    inventory = loaded(text)
    prose = " ".join(line.strip(" #") for line in text.splitlines())
    for program in {program for each in silent.values() for program in each}:
        assert f"the {ABOUT[program]} of " in prose, text
    for program in set(ABOUT) - {program for each in silent.values() for program in each}:
        assert f"the {ABOUT[program]} of " not in prose, text
    for false in ("nvidia-smi", "no address on any interface", "none with torch"):
        assert false not in text
    without_gpus = {name for name, each in silent.items() if SURVEY_PROGRAM in each}
    assert {node.name for node in inventory.nodes if not node.gpus} == without_gpus
    assert "\n  backend: gloo" not in text
    assert ("\n  backend: nccl" in text) is not bool(without_gpus)


@pytest.mark.parametrize(
    ("smi", "backend"),
    [
        ({"missing": True}, "  backend: gloo"),
        ({"code": 6, "out": "No devices were found", "err": ""}, "  backend: gloo"),
        (
            {"code": 9, "out": "NVIDIA-SMI has failed because it couldn't communicate", "err": ""},
            "  # backend: nccl once",
        ),
        ({"timed_out": True}, "  # backend: nccl once"),
    ],
)
def test_a_host_without_gpus_makes_it_gloo_and_one_that_cannot_count_them_leaves_it_open(
    smi: dict[str, object], backend: str
) -> None:
    hosts = parse_hosts(["n[1-3]"], Login())
    answers = {
        host.node.name: HostAnswers(
            host, {"hostname": host.node.name}, survey=SAID[SURVEY_PROGRAM], host_facts=SAID[HOST_FACTS_PROGRAM]
        )
        for host in hosts
    }
    answers["n2"].survey = {**SAID[SURVEY_PROGRAM], "nvidia_smi": smi, "nvidia_devices": None}
    text = draft_text(draft_of_survey(hosts, SurveyResult(answers, {}, {}), "made"))
    assert [line[: len(backend)] for line in text.splitlines() if "backend: " in line] == [backend], text
    assert loaded(text).rendezvous.backend == "gloo"


def test_of_many_addresses_those_near_another_host_are_kept() -> None:
    """A host with more bridges of containers than addresses are tried, as the lab's own machine has."""
    bridges = [f"10.{number}.0.1" for number in range(100, 120)]
    temporary = [f"2001:db8::{number:x}00" for number in range(1, 10)]
    here = answers_of("here", [*bridges, *temporary, "172.17.0.1", "192.0.2.2", "10.77.5.254"])
    there = answers_of("there", ["172.17.0.1", "10.77.5.1", "2001:db8::7:1"])
    chosen = survey.candidate_addresses({"here": here, "there": there})
    assert chosen["there"] == ["172.17.0.1", "10.77.5.1", "2001:db8::7:1"]
    assert len(chosen["here"]) == survey.MAX_ADDRESSES
    assert chosen["here"][0] == "10.77.5.254"
    assert "172.17.0.1" not in chosen["here"]
    alone = survey.candidate_addresses({"here": here})["here"]
    assert alone == bridges[: survey.MAX_ADDRESSES]
    here.survey = {"login": ["192.0.2.2", 22]}
    assert survey.candidate_addresses({"here": here, "there": there})["here"][0] == "192.0.2.2"


def answers_of(name: str, addresses: list[str]) -> HostAnswers:
    interfaces = {f"eth{number}": {"addresses": [one], "state": "UP"} for number, one in enumerate(addresses)}
    (host,) = parse_hosts([name], Login())
    return HostAnswers(host, {"hostname": name}, host_facts={"interfaces": interfaces})
