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

from runbook.causes.netfilter import firewalld, iptables, nft, ufw
from runbook.checks import ibstat

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
    said = ping_program.summary({"code": 0, "out": OUTPUTS[name]["output"], "err": ""})
    expected = OUTPUTS[name]["expect"]
    assert (said["sent"], said["received"]) == (expected["transmitted"], expected["received"])


@pytest.mark.parametrize("name", of("ping (Windows"))
def test_a_ping_that_no_parser_knows_has_no_numbers(ping_program: ModuleType, name: str) -> None:
    said = ping_program.summary({"code": 1, "out": OUTPUTS[name]["output"], "err": ""})
    assert "received" not in said
    assert said["raw"]


@pytest.mark.parametrize("name", [name for name in of("ibstat") if "ibstatus" not in name])
def test_ibstat(name: str) -> None:
    expected = OUTPUTS[name]["expect"]
    ports = ibstat.parse(OUTPUTS[name]["output"])
    active = [port for port in ports if port.state == "active"]
    assert len(active) == expected.get("active", len(ports)) > 0
    assert len(ports) == expected.get("cas", len(ports))
    for hca, physical in expected.get("down", {}).items():
        assert next(port for port in ports if port.hca == hca).physical == physical.lower()


@pytest.mark.parametrize("name", of("ufw"))
def test_ufw(name: str) -> None:
    status = ufw.parse_status(OUTPUTS[name]["output"])
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
    status = firewalld.parse_zones(OUTPUTS[name]["output"])
    assert [zone.name for zone in status.zones if zone.active] == OUTPUTS[name]["expect"]["active_zones"]


@pytest.mark.parametrize("name", [name for name in of("firewall-cmd") if "zones" not in name])
def test_a_firewalld_that_does_not_run(name: str) -> None:
    assert not firewalld.runs(OUTPUTS[name]["output"])
