"""Whatever happens to an output on its way here: no reader raises, and what showed a fault never looks healthy."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from runbook.diagnose.tool_outputs import MAX_LINE_CHARACTERS, ToolOutput, known_tools, read_paste
from runbook.parsers.tool_reading import Reading

from .outputs import OUTPUTS, Output

FAULTY = {name: output for name, output in OUTPUTS.items() if output.from_}
CHARACTERS = "\n\t :|-+/()[]<>.,'\"0129aAxX%\x1b\0ü"


def read(output: Output, text: str) -> tuple[ToolOutput, ...]:
    prompt = "" if output.command.startswith(("PS ", "C:")) else "$ "
    return read_paste(f"{prompt}{output.command}\n{text}").found


def readings(output: Output, text: str) -> list[Reading]:
    return [found.reading for found in read(output, text)]


@pytest.mark.parametrize("name", FAULTY)
def test_cut_anywhere_inside_of_what_is_wrong_it_is_not_healthy(name: str) -> None:
    output = FAULTY[name]
    begins = output.text.index(output.from_) + 1
    for end in range(begins, len(output.text)):
        text = output.text[:end]
        assert not any(reading.healthy for reading in readings(output, text)), f"healthy: …{text[-60:]!r}"


@pytest.mark.parametrize("name", FAULTY)
def test_without_one_of_its_lines_it_is_not_healthy(name: str) -> None:
    output = FAULTY[name]
    lines = output.text.splitlines(keepends=True)
    first = output.text[: output.text.index(output.from_)].count("\n")
    shown = {at - 1 for reading in readings(output, output.text) for fault in reading.faults for at in fault.lines}
    for at in range(first, len(lines)):
        if shown == {first} == {at}:
            continue  # a record of one line that is gone says nothing: what is left is another output, and a true one
        text = "".join([*lines[:at], *lines[at + 1 :]])
        assert not any(reading.healthy for reading in readings(output, text)), f"healthy without {lines[at]!r}"


BESIDE = {
    "chronyc sources": Output(
        "chronyc sources",
        "MS Name/IP address         Stratum Poll Reach LastRx Last sample\n"
        "===============================================================================\n"
        "^? time.example.net              0   6     0     -     +0ns[   +0ns] +/-    0ns\n",
    ),
    "timedatectl timesync-status": Output(
        "timedatectl timesync-status", "       Server: 203.0.113.15 (time.example.net)\n       Offset: +41.3s\n"
    ),
    "ntpq": Output(
        "ntpq -pn",
        "     remote           refid      st t when poll reach   delay   offset  jitter\n"
        "==============================================================================\n"
        " 203.0.113.15    .INIT.          16 u    -   64    0    0.000    0.000   0.000\n",
    ),
    "nvidia-smi -L": Output(
        "nvidia-smi -L", "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5f6b1c9e-8a51-5d0e-9f1a-0c3f6f1e2a01)\n"
    ),
    "iptables -L": Output(
        "iptables -nL",
        "Chain INPUT (policy ACCEPT)\ntarget     prot opt source               destination\n"
        "DROP       tcp  --  0.0.0.0/0            0.0.0.0/0            tcp dpt:29500\n",
    ),
    "ufw": Output(
        "ufw status", "Status: active\n\nTo                         Action      From\n29500/tcp DENY Anywhere\n"
    ),
    "firewalld": Output("firewall-cmd --list-all", "public (active)\n  target: default\n  services: ssh\n  ports: \n"),
}
"""Outputs of the tools that OUTPUTS has none of."""

EVERY = {**OUTPUTS, **BESIDE}
TOO_LONG = ("q" * MAX_LINE_CHARACTERS, " " * MAX_LINE_CHARACTERS + "q", " q" * MAX_LINE_CHARACTERS)


@pytest.mark.parametrize("name", EVERY)
def test_a_line_that_is_cut_proves_nothing(name: str) -> None:
    """Neither health nor a fault: what stands behind the cut nobody has read."""
    output = EVERY[name]
    lines = output.text.splitlines()
    for at, line in enumerate(lines):
        for more in TOO_LONG if line.strip() and "{" not in line[:1] else ():
            text = "\n".join([*lines[:at], line + more, *lines[at + 1 :]])
            for found in read(output, text):
                if not any(len(each) >= MAX_LINE_CHARACTERS for each in found.lines):
                    continue  # the long line made the text another tool's, or a log's
                reading = found.reading
                assert reading.unknown, f"not unknown with a long {line!r}"
                shown = {n for fault in reading.faults for n in fault.lines}
                shown |= {n for support in reading.supports for n in support.lines}
                assert not any(len(found.lines[n - 1]) >= MAX_LINE_CHARACTERS for n in shown), (
                    f"{shown} by half of {line!r}"
                )


def test_every_tool_has_an_output_that_is_cut() -> None:
    read_here = {found.reading.tool for output in EVERY.values() for found in read(output, output.text)}
    assert {tool.name for tool in known_tools()} == read_here


@examples(400)
@given(name=st.sampled_from(sorted(OUTPUTS)), seed=st.integers(0, 2**32), times=st.integers(1, 30), typed=st.booleans())
def test_no_text_breaks_a_reader(name: str, seed: int, times: int, typed: bool) -> None:
    chance = random.Random(seed)
    text = list(OUTPUTS[name].text)
    for _ in range(times):
        at = chance.randrange(len(text) + 1)
        way = chance.randrange(4)
        if way == 0:
            text[at : at + chance.randrange(1, 40)] = []
        elif way == 1:
            text[at:at] = chance.choice(CHARACTERS)
        elif way == 2 and at < len(text):
            text[at] = chance.choice(CHARACTERS)
        else:
            other = OUTPUTS[chance.choice(sorted(OUTPUTS))].text
            text[at:at] = other[chance.randrange(len(other)) :][:80]
    if typed:
        readings(OUTPUTS[name], "".join(text))
    else:
        read_paste("".join(text))


@examples(300)
@given(name=st.sampled_from(sorted(FAULTY)), seed=st.integers(0, 2**32))
def test_one_wrong_character_in_the_proof_makes_nothing_healthy(name: str, seed: int) -> None:
    chance = random.Random(seed)
    output = FAULTY[name]
    proof = [at for reading in readings(output, output.text) for fault in reading.faults for at in fault.lines]
    lines = output.text.splitlines(keepends=True)
    at = chance.choice(proof) - 1
    place = chance.randrange(len(lines[at]))
    # A letter, so that no number becomes another one, which would be another output and a true one.
    if lines[at][place].isdigit():
        return
    lines[at] = lines[at][:place] + "q" + lines[at][place + 1 :]
    told = readings(output, "".join(lines))
    assert not any(reading.healthy for reading in told), f"healthy with {lines[at]!r}"


@examples(200)
@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    read_paste(text)
    read_paste(f"$ ibstat\n{text}\n$ nvidia-smi\n{text}")
