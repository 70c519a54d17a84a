"""The parsers against outputs of real tools, where that folder is at hand (RUNBOOK_CORPUS)."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from one_tool import read_tool

from runbook.checks.reach.gpus import judge_gpus
from runbook.firewall import iptables, nft
from runbook.firewall.front_ends import is_firewalld_running, parse_firewalld_zones, parse_ufw_status
from runbook.parsers import infiniband
from runbook.parsers import nvidia_smi_facts as printed

from .made_up_cluster import node

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("RUNBOOK_CORPUS", ROOT.parent / "shared" / "corpus"))
FILE = FOLDER / "tool_outputs.jsonl"
OUTPUTS: dict[str, dict[str, Any]] = {}
if FILE.is_file():
    OUTPUTS = {told["id"]: told for told in map(json.loads, FILE.read_text(encoding="utf-8").splitlines())}

pytestmark = pytest.mark.skipif(not OUTPUTS, reason="no outputs of tools here (RUNBOOK_CORPUS)")


def of(*tools: str) -> list[str]:
    return [name for name, told in OUTPUTS.items() if told["tool"].startswith(tools)]


@pytest.fixture
def ping_program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The node's program, imported as it runs there: beside its own `tool`."""
    folder = ROOT / "runbook" / "node"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    spec = importlib.util.spec_from_file_location("node_ping", folder / "ping.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", of("ping (iputils)", "ping (macOS)", "ping (busybox)", "ping (FreeBSD)"))
def test_ping_in_its_dialects(ping_program: ModuleType, name: str) -> None:
    said = ping_program.ping_result({"code": 0, "out": OUTPUTS[name]["output"], "err": ""})
    expected = OUTPUTS[name]["expect"]
    assert (said["sent"], said["received"]) == (expected["transmitted"], expected["received"])


@pytest.mark.parametrize("name", of("ping (Windows"))
def test_a_ping_that_no_parser_knows_has_no_numbers(ping_program: ModuleType, name: str) -> None:
    said = ping_program.ping_result({"code": 1, "out": OUTPUTS[name]["output"], "err": ""})
    assert "received" not in said
    assert said["raw"]


@pytest.mark.parametrize("name", of("ibstat"))
def test_ibstat_and_ibstatus(name: str) -> None:
    expected = OUTPUTS[name]["expect"]
    ports = infiniband.parse(OUTPUTS[name]["output"])
    active = [port for port in ports if port.state == "active"]
    assert len(active) == expected.get("active", len(ports)) > 0
    assert len(ports) == expected.get("cas", len(ports))
    for hca, physical in expected.get("down", {}).items():
        assert next(port for port in ports if port.hca == hca).physical == physical.lower()


@pytest.mark.parametrize("name", of("ibportstate"))
def test_what_is_not_ibstats_shows_no_port(name: str) -> None:
    assert infiniband.parse(OUTPUTS[name]["output"]) == []


@pytest.mark.parametrize("name", of("nvidia-smi"))
def test_no_other_output_of_nvidia_smi_is_a_list_of_sound_gpus(name: str) -> None:
    answer = {"out": OUTPUTS[name]["output"], "err": "", "code": 0, "fields": ["index", "uuid", "name"]}
    judged = judge_gpus(node("node-a", gpus=(0,)), {"gpu": answer})
    (finding,) = (*judged.findings, *judged.unknown)
    assert finding.cause == ("gpu-fell-off-bus" if "gpu-lost" in name else "tool-output-unknown")


def test_nvidia_smi_in_its_listings() -> None:
    details = printed.parse_details(OUTPUTS["nvidia-smi-q-remap-pending"]["output"])
    assert details.head["CUDA Version"] == "11.6"
    assert details.gpus["0000:10:1c"]["Remapped Rows/Pending"] == "Yes"
    assert details.gpus["0000:10:1c"]["ECC Errors/Volatile/DRAM Correctable"] == "177"
    for name in ("nvidia-smi-q-h100-odd", "nvidia-smi-q-pcie-idle"):
        assert printed.parse_details(OUTPUTS[name]["output"]).gpus == {}
    links = printed.parse_links(OUTPUTS["nvidia-smi-nvlink-a100"]["output"])
    assert {gpu: sum(up.values()) for gpu, up in links.items()} == {0: 12, 1: 12}


def test_bits_of_the_clocks() -> None:
    for line in OUTPUTS["nvidia-smi-clocks-event"]["output"].splitlines():
        expected = next(g for g in OUTPUTS["nvidia-smi-clocks-event"]["expect"]["gpus"] if line.startswith(g["name"]))
        reasons = printed.slowdown_names(int(line.rpartition(", ")[2], 16))
        assert [reason.lower().replace(" ", "_") for reason in reasons] == [
            name.removesuffix("_slowdown") for name in expected["reasons"] if name.startswith("hw_")
        ]


@pytest.mark.parametrize("name", of("ufw"))
def test_ufw(name: str) -> None:
    status = parse_ufw_status(OUTPUTS[name]["output"])
    expected = OUTPUTS[name]["expect"]
    assert status
    assert status.active == expected["active"]
    assert status.incoming == expected.get("default_incoming")
    assert len(status.rules) == expected.get("rules", len(status.rules))


@pytest.mark.parametrize("name", of("nft -j"))
def test_nft(name: str) -> None:
    chains = nft.parse(OUTPUTS[name]["output"])
    expected = OUTPUTS[name]["expect"]
    assert {base.table for base in chains} <= set(expected["tables"])
    assert not chains or {base.policy for base in chains if base.hook == "input"} == {expected["input_policy"]}


@pytest.mark.parametrize("name", of("iptables-save"))
def test_iptables(name: str) -> None:
    chains = iptables.parse(OUTPUTS[name]["output"], "iptables-legacy")
    policy = OUTPUTS[name]["expect"]["input_policy"].lower()
    assert next(base for base in chains if base.hook == "input").policy == policy


@pytest.mark.parametrize("name", of("firewall-cmd --list-all-zones"))
def test_firewalld_zones(name: str) -> None:
    status = parse_firewalld_zones(OUTPUTS[name]["output"])
    assert [zone.name for zone in status.zones if zone.active] == OUTPUTS[name]["expect"]["active_zones"]


@pytest.mark.parametrize("name", [name for name in of("firewall-cmd") if "zones" not in name])
def test_a_firewalld_that_does_not_run(name: str) -> None:
    assert not is_firewalld_running(OUTPUTS[name]["output"])


FAULTS = {
    "ibportstate-polling": "ib-port-not-active",
    "ibstat-some-down": "ib-port-not-active",
    "ntpq-init": "clock-skew",
    "ntpq-no-peer-selected": "clock-skew",
    "nvidia-smi-gpu-lost": "gpu-fell-off-bus",
    "nvidia-smi-q-remap-pending": "gpu-reset-required",
    "ping-linux-unreachable": "host-unreachable",
    "ping-mac-unreachable": "host-unreachable",
    "ulimit-memlock-64": "memlock-limit",
    "winping-unreachable": "host-unreachable",
}
NOT_WHOLE = {
    "firewalld-missing",
    "ibstat-a100-ibpanic",
    "nvidia-smi-q-h100-odd",
    "nvidia-smi-q-pcie-idle",
    "nvidia-smi-q-remap-pending",
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_output_shows_its_fault_and_what_is_not_whole_is_unknown(name: str) -> None:
    reading = read_tool(OUTPUTS[name]["output"])
    assert reading
    assert [fault.cause for fault in reading.faults] == ([FAULTS[name]] if name in FAULTS else [])
    assert bool(reading.unknown) is (name in NOT_WHOLE)
