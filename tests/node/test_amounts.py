"""Amounts that a kernel tells, up to the largest that it can: what is said of them must not cost the whole answer."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runbook.node import host_facts, supervisor
from runbook.transport.frames import decode_json
from runbook.transport.node_answers import Hello, InterfaceFacts, Limits, SharedMemory

BLOCK = 1 << 20
SIZES = (0, 1 << 34, 1 << 62, (1 << 63) - BLOCK, 1 << 63, (1 << 64) - BLOCK)
"""Of a disk, of the largest that we tell, of EFS, and of file systems that have no end."""


def room(size: int) -> Any:
    """As Python shows what a kernel said: a number from 2^63 on is negative."""
    blocks, files = (number - (1 << 64 if number >= 1 << 63 else 0) for number in (size // BLOCK, size))
    return SimpleNamespace(f_blocks=blocks, f_bavail=blocks, f_frsize=BLOCK, f_files=files, f_favail=files, f_flag=0)


@pytest.mark.parametrize("size", SIZES)
def test_a_file_system_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(supervisor, "Pipe", lambda: SimpleNamespace(send=said.append))
    monkeypatch.setattr(os, "statvfs", lambda _: room(size))
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(sys, "argv", ["supervisor"])
    supervisor.Supervisor().greet({"run_id": "r", "node": "node-a", "workdir": str(tmp_path)})
    frame = {key: value for key, value in said[0].items() if key != "event"}
    hello = decode_json(json.dumps(frame).encode(), Hello)
    memory = decode_json(json.dumps(host_facts.shared_memory()).encode(), SharedMemory)
    told = {hello["free_bytes"], hello["place"]["free_bytes"], memory["bytes"], memory["free_bytes"]}
    assert told == {min(size, 1 << 62)}
    assert hello["free_files"] == (min(size, 1 << 62) if size else None)


@pytest.mark.parametrize("limit", [1 << 16, 1 << 62, (1 << 63) - 1, -(1 << 63), -2])
def test_a_limit_of_any_size(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    limits = decode_json(json.dumps(host_facts.login_limits()).encode(), Limits)
    told = {limits[name] for name in ("memlock_bytes", "open_files", "address_space_bytes", "cpu_seconds")}
    assert told == {limit if 0 <= limit < 1 << 62 else 1 << 62}
    assert limits["memlock_hard_bytes"] is None


def test_a_file_among_the_interfaces_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module for bonding puts a plain file there, and a machine may have no `ip`."""
    monkeypatch.setattr(host_facts, "run_if_installed", lambda *_: {"missing": True})
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*listed(path), "bonding_masters"])
    found = host_facts.interface_facts()
    assert "lo" in found
    assert "bonding_masters" not in found
    decode_json(json.dumps(found).encode(), dict[str, InterfaceFacts])
