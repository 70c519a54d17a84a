"""Words of findings: command lines cut, frames that tell, pauses."""

from __future__ import annotations

from runbook.causes.catalogue import finding_for
from runbook.checks.allreduce import pause_warnings
from runbook.checks.network.dial import Dial, ephemeral_ports_reason
from runbook.checks.ranks.evidence import telling_frames
from runbook.checks.ranks.own_failure import LAUNCH_SCRIPT_PREFIX
from runbook.model.units import MAX_BRIEF_CHARACTERS, shortened_line
from runbook.model.verdict import MAX_FINDING_TEXT_CHARACTERS

OURS = 'File "/home/u/.runbook/1/node-a/rank.py", line 337 in allreduce'
CALL = 'File "/venv/torch/distributed/distributed_c10d.py", line 3252 in all_reduce'
LOGGER = 'File "/venv/torch/distributed/c10d_logger.py", line 83 in wrapper'
OPS = 'File "/venv/torch/_ops.py", line 1158 in __call__'


def test_torch_passing_a_call_on_is_no_frame_that_tells() -> None:
    assert telling_frames([OPS, CALL, LOGGER, OURS]) == [CALL, OURS]
    assert telling_frames([LOGGER]) == [LOGGER]
    mine = 'File "/home/u/train/c10d_logger.py", line 3 in wrapper'
    assert telling_frames([mine, LOGGER]) == [mine]


def test_a_long_command_is_cut_and_a_short_one_is_not() -> None:
    assert shortened_line("python  -m\nhttp.server") == "python -m http.server"
    long = "/opt/venv/bin/python -c " + "import socket; " * 20
    assert len(shortened_line(long)) <= MAX_BRIEF_CHARACTERS
    assert shortened_line(long).endswith("…")
    assert len(shortened_line("x" * 500)) == MAX_BRIEF_CHARACTERS


def row(size: int, p50: float, longest: float) -> dict[str, float]:
    return {"size": size, "p50_us": p50, "p99_us": p50, "max_us": longest}


def test_a_pause_is_told_and_a_busy_machine_is_not() -> None:
    assert pause_warnings([row(1024, 400, 300_000), row(4096, 900, 2000)]) == []
    assert pause_warnings([row(1 << 30, 300_000, 2_000_000)]) == []
    (said,) = pause_warnings([row(1024, 427, 1_033_900), row(2048, 500, 700_000)])
    assert said.startswith("one iteration at 1 KiB paused for 1.0 s (p50 0.427 ms), and such a pause at 1 more size:")


def test_shells_name_of_the_launch_script_is_left_out() -> None:
    dash = "/home/u/.runbook/20261121/node-b/connection.sh: 40: .: cannot open /opt/x: No such file"
    bash = "/home/u/.runbook/20261121/node-b/connection.sh: line 40: /opt/x: No such file or directory"
    assert LAUNCH_SCRIPT_PREFIX.sub("", dash) == ".: cannot open /opt/x: No such file"
    assert LAUNCH_SCRIPT_PREFIX.sub("", bash) == "/opt/x: No such file or directory"
    assert LAUNCH_SCRIPT_PREFIX.sub("", "CondaError: no such environment") == "CondaError: no such environment"


def dialled(port: int, kind: str) -> Dial:
    return Dial("node-a", "node-b", "10.0.0.2", port, kind, "dial", "dropped", None, 0.5)


def test_why_the_kernels_ports_are_opened_is_said_where_they_are() -> None:
    wide = "sudo ufw allow from 10.0.0.1 to any port 29500:29510,32768:60999 proto tcp"
    dials = [dialled(29500, "rendezvous"), dialled(40121, "ephemeral")]
    (said,) = ephemeral_ports_reason(dials, wide)
    assert said.startswith("why: 32768-60999 ")
    assert ephemeral_ports_reason(dials, wide.replace(",32768:60999", "")) == ()
    assert ephemeral_ports_reason(dials[:1], wide) == ()


def test_of_a_line_without_end_its_beginning_and_its_end_are_told() -> None:
    line = "begins " + "x" * 500_000 + " RuntimeError: ends"
    finding = finding_for(
        "packet-loss", f"node-a: {line}", ("short", line), (), way="link", source="a", destination="b"
    )
    for text in (finding.says, finding.evidence[1]):
        assert len(text) <= MAX_FINDING_TEXT_CHARACTERS
        assert "begins " in text
        assert text.endswith(" RuntimeError: ends")
        assert "characters left out" in text
    assert finding.evidence[0] == "short"
