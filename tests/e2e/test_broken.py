"""A pair of hosts with one thing wrong: the right stage stops, and names the right cause and node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab import Host, Lab

from .e2e_types import Ran

pytestmark = [pytest.mark.lab, pytest.mark.torch]


def block(host: Host, rule: str, hook: str = "input") -> None:
    host.firewall(
        f"table inet lab {{\n chain {hook} {{\n type filter hook {hook} priority 0; policy accept;\n {rule}\n }}\n}}\n"
    )


def stops(ran: Ran, stage: str, *expected: tuple[str, str], code: int = 1) -> None:
    """The run stopped at `stage`, with these (node, cause) and no others; unreachable nodes give exit 3."""
    assert ran.code == code, ran.text()
    assert ran.document["stopped_at"] == stage, ran.text()
    verdict = "fail" if code == 1 else "unknown"
    assert {(node, cause) for _, node, cause in ran.findings(verdict)} >= set(expected), ran.text()
    assert ran.document["causes"][0] == expected[0][1], ran.text()
    if code == 1:
        assert {(node, cause) for _, node, cause in ran.findings("fail")} == set(expected), ran.text()
    assert "fix " in ran.done.stdout


def test_a_secret_that_a_program_prints_is_starred(
    two_hosts: Lab, run_in: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "s3cr3t-0815")
    environment = two_hosts.environment()
    monkeypatch.setattr(two_hosts, "environment", lambda: {**environment, "SECRET_OF_MINE": "s3cr3t-0815"})
    node = {"env": {"TOKEN": {"env": "SECRET_OF_MINE"}}, "activate": "echo token=$TOKEN; echo $TOKEN >&2; false"}
    ran = run_in(two_hosts, "-v", nodes={"node-b": node})
    stops(ran, "reach", ("node-b", "activation-failed"))
    kept = "".join(path.read_text() for path in ran.folder.rglob("*") if path.is_file())
    assert "token=***" in kept
    assert "s3cr3t-0815" not in kept + ran.text()
