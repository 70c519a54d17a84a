"""A real login over a real sshd, behind which the Python is not ours but an attacker's: its node is unknown, the other one is judged,
and nothing of this machine is changed but the run's folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import Lab
from lab.cli import runbook_cli
from profiles import one_in

from .lying_supervisor import INTERPRETER

LIES = {
    "names that are paths": """\
def spoilt(value):
    if isinstance(value, str):
        return "../../../../../../tmp/owned\\x1b[2J$(touch owned)"
    if isinstance(value, list):
        return [spoilt(one) for one in value] * 3
    if isinstance(value, dict):
        return {"../" + name if name in ("read", "size") else name: spoilt(one) for name, one in value.items()}
    return value
def lie(frame, payload):
    return ({**frame, "answer": spoilt(frame["answer"])} if "answer" in frame else frame), payload
""",
    "numbers without end": """\
def spoilt(value):
    if isinstance(value, bool) or not isinstance(value, (int, float, list, dict)):
        return value
    if isinstance(value, list):
        return [spoilt(one) for one in value]
    if isinstance(value, dict):
        return {name: spoilt(one) for name, one in value.items()}
    return 10 ** 400
def lie(frame, payload):
    return ({**frame, "answer": spoilt(frame["answer"])} if "answer" in frame else frame), payload
""",
    "the answer to another question": """\
before = []
def lie(frame, payload):
    if "answer" in frame:
        before.append(frame["answer"])
        frame = {**frame, "answer": before[0]}
    return frame, payload
""",
    "every frame is about another order": """\
def lie(frame, payload):
    return ({**frame, "id": frame["id"] + 1} if frame.get("id") else frame), payload
""",
}
PROGRAMS = {
    "prints without end": "#!/bin/sh\nexec yes\n",
    "never says anything": "#!/bin/sh\nexec cat >/dev/null\n",
    "ends at once": "#!/bin/sh\nprintf '\\033]0;owned\\007' >&2; exit 0\n",
    "says that it is ready, and then zeros": "#!/bin/sh\nprintf 'runbook'; exec cat /dev/zero\n",
}
PLAYBOOK = "name: looks\nstages: [{check: ping}, {check: port}, {check: firewall}]\n"
COMMANDS = {
    "run": ("run", "looks.yml", "-i", "INVENTORY", "--run-dir", "made", "-o", "json"),
    "ps": ("ps", "-i", "INVENTORY", "-o", "json"),
    "collect": ("collect", "-i", "INVENTORY", "--out", "made.tar.gz", "-o", "json"),
}


def hostile(lab: Lab, what: str) -> Path:
    """Put it in the place of node-b's Python; the inventory."""
    host = lab["node-b"]
    home = host.run("echo ~", lab.user).stdout.strip()
    text = PROGRAMS.get(what) or INTERPRETER.format(python=lab.python_without_torch, lies=f"{home}/lies.py")
    host.write("~/python", text, mode=0o755, user=lab.user)
    host.write("~/lies.py", LIES.get(what, ""), user=lab.user)
    nodes = {"node-b": {"python": f"{home}/python"}}
    return lab.inventory(defaults={"python": lab.python_without_torch}, nodes=nodes)


def files(lab: Lab) -> dict[Path, tuple[int, int]]:
    """Of the controller's user, and what an attacker of these tests would make."""
    paths = [path for path in lab.home.rglob("*") if path.is_file()] + [*Path("/tmp").glob("owned*")]
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths}


CASES = [(what, command) for what in (*LIES, *PROGRAMS) for command in COMMANDS]


@pytest.mark.lab
@pytest.mark.parametrize(("what", "command"), one_in(11, CASES, thorough=2))
def test_a_node_whose_python_is_an_attackers(what: str, command: str, two_hosts: Lab) -> None:
    lab = two_hosts
    inventory = hostile(lab, what)
    (lab.tmp / "looks.yml").write_text(PLAYBOOK)
    before, beside = files(lab), {*lab.tmp.iterdir()}
    done = runbook_cli(lab, *(word.replace("INVENTORY", str(inventory)) for word in COMMANDS[command]))
    assert files(lab) == before
    assert {path.name for path in {*lab.tmp.iterdir()} - beside} <= {"made", "made.tar.gz", ".runbook"}
    assert done.returncode in ((1, 3) if command == "run" else (0, 3)), str(done)
    assert "\x1b" not in done.stdout + done.stderr, str(done)
    assert "Traceback" not in done.stdout + done.stderr, str(done)
    if command == "run":
        findings = [
            (outcome["node"], finding["cause"])
            for stage in done.json()["stages"]
            for outcome in stage["outcomes"]
            for finding in outcome["findings"]
        ]
        assert findings, str(done)
        assert {node for node, _ in findings} == {"node-b"}, str(done)
