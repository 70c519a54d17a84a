"""The ping program of a node against ping programs that refuse its options, late names, and very many peers."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from runbook.node import ping

REFUSED = {"interval": "-i", "fragments": "-M", "deadline": "-w"}
TEXTS = [
    (
        "ping: invalid option -- '{0}'\nBusyBox v1.35.0 multi-call binary.\n\nUsage: ping [OPTIONS] HOST\n"
        + "\t-x\tLong\n" * 90,
        1,
    ),
    ("ping: option value too small: 0.005", 1),
    ("ping: unrecognized option: {0}", 1),
    ("ping: invalid option -- '{0}'\nTry 'ping --help'", 64),
    ("usage: ping [-c count] host", 2),
]
SENDS = """\
count=3
while [ $# -gt 1 ]; do [ "$1" = -c ] && count=$2; shift; done
echo "$count packets transmitted, $count packets received, 0% packet loss"
"""


@pytest.mark.parametrize(("said", "code"), TEXTS, ids=["busybox", "value", "unrecognized", "inetutils", "usage"])
@pytest.mark.parametrize("refused", [of for n in (1, 2, 3) for of in itertools.combinations(REFUSED, n)], ids="-".join)
def test_a_ping_that_refuses_options_is_asked_plainly(
    said: str, code: int, refused: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ping"
    lines = ["#!/bin/sh"]
    for option in (REFUSED[name] for name in refused):
        text = tmp_path / f"says{option}"
        text.write_text(said.format(option[1:]))
        lines.append(f'case " $* " in *" {option} "*) cat "{text}" >&2; exit {code};; esac')
    program.write_text("\n".join([*lines, SENDS]))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for extra in ([], ping.FIRST_PING_OPTIONS):
        small = ping.ping("192.0.2.1", extra, 5)
        assert small.get("sent") == small.get("received") != None, small  # noqa: E711
    full = ping.ping("192.0.2.1", ["-M", "do", "-s", "1472"], 5)
    if "fragments" in refused:
        assert "sent" not in full
        assert full["raw"].startswith(said.format("M")[:20]) or full["raw"].startswith(said.format("i")[:20])
    else:
        assert full.get("received")


def test_a_name_that_came_too_late_for_one_came_too_late_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    look = socket.getaddrinfo

    def late(name: str, *of: Any, **more: Any) -> Any:
        if not more.get("flags"):
            answered.wait(60)
        return look("192.0.2.1" if not more.get("flags") else name, *of, **more)

    monkeypatch.setattr(ping, "LOOKUP_TIMEOUT_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", late)
    lookup = ping.Lookup("gpu1.lab")
    assert ping.probe_ping_target({"peer": "node-b", "address": "gpu1.lab"}, lookup, 5, float("inf"))["small"] is None
    answered.set()
    lookup._thread.join(60)
    assert (lookup.result()["addresses"], lookup.result()["seconds"]) == (None, 0.05)


PEERS = 200


def looked(monkeypatch: pytest.MonkeyPatch, tool: Any) -> list[Any]:
    monkeypatch.setattr(ping, "at_first_glance", lambda *_: {})
    monkeypatch.setattr(ping, "run_if_installed", tool)
    targets = [{"peer": f"n{number}", "address": f"192.0.2.{number}", "spare": None} for number in range(PEERS)]
    return ping.look({"names": [], "hostname": False, "reverse": "127.0.0.1", "targets": targets})["targets"]


def test_of_very_many_silent_peers_more_are_waited_for_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(PEERS // 4)

    def tool(name: str, *_: object) -> Any:
        if name == "ping":
            together.wait(60)
        return {
            "code": 1,
            "out": "5 packets transmitted, 0 received, 100% packet loss" if name == "ping" else "",
            "err": "",
        }

    assert all(target["small"]["sent"] == 5 for target in looked(monkeypatch, tool))


def test_peers_for_whom_there_is_no_time_are_told_as_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def tool(name: str, *_: object) -> Any:
        asked.append(name)
        return {"code": 0, "out": "", "err": ""}

    monkeypatch.setattr(ping, "LAST_START_DEADLINE_S", -1.0)
    targets = looked(monkeypatch, tool)
    assert len(targets) == PEERS
    assert all(target["resolved"] and target["small"] is None for target in targets)
    assert "ping" not in asked
