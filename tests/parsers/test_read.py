"""Every output is recognised, with and without its command, and says what it says."""

from __future__ import annotations

import pytest
from one_tool import read_tool

from runbook.causes.catalogue import cause_pages as known_causes
from runbook.diagnose.tool_outputs import known_tools
from runbook.parsers import ping
from runbook.parsers.tool_reading import Reading

from .outputs import OUTPUTS, Output

NEEDS_ITS_COMMAND = (
    *("ulimit -l", "ip route get, none", "getent, Debian's loopback", "in German"),
    *("ping, no way at all", "no such name"),
)


def typed(output: Output) -> str:
    prompt = "" if output.command.startswith(("PS ", "C:")) else "$ "
    return f"{prompt}{output.command}\n{output.text}"


def check(reading: Reading | None, output: Output) -> None:
    assert reading is not None
    assert tuple(fault.cause for fault in reading.faults) == output.faults
    assert tuple(support.causes[0] for support in reading.supports) == output.supports
    assert bool(reading.unknown) is output.unknown


@pytest.mark.parametrize("name", OUTPUTS)
def test_behind_its_command(name: str) -> None:
    check(read_tool(typed(OUTPUTS[name])), OUTPUTS[name])


@pytest.mark.parametrize("name", [name for name in OUTPUTS if not name.endswith(NEEDS_ITS_COMMAND)])
def test_without_its_command(name: str) -> None:
    check(read_tool(OUTPUTS[name].text), OUTPUTS[name])


@pytest.mark.parametrize("name", OUTPUTS)
def test_with_the_line_ends_of_windows(name: str) -> None:
    check(read_tool(typed(OUTPUTS[name]).replace("\n", "\r\n")), OUTPUTS[name])


@pytest.mark.parametrize("name", [name for name, output in OUTPUTS.items() if output.faults])
def test_a_fault_has_lines_that_show_it_and_a_command_that_helps(name: str) -> None:
    reading = read_tool(OUTPUTS[name].text) or read_tool(typed(OUTPUTS[name]))
    assert reading
    lines = OUTPUTS[name].text.splitlines()
    for fault in reading.faults:
        assert fault.cause in known_causes()
        assert fault.remedy
        assert fault.lines
        assert all(lines[at - 1].strip() for at in fault.lines)
    assert {cause for support in reading.supports for cause in support.causes} <= set(known_causes())


@pytest.mark.parametrize(
    ("local", "address"),
    [("[::]:29500", "::"), (":::29500", "::"), ("*:29500", "*"), ("127.0.0.53%lo:29500", "127.0.0.53%lo")],
)
def test_whatever_the_address_a_port_is_read(local: str, address: str) -> None:
    reading = read_tool(f'LISTEN 0 128 {local} [::]:* users:(("python3",pid=4711,fd=18))\n')
    assert reading
    (held,) = reading.supports
    assert (held.about, held.says) == ("29500", f"port 29500 on {address} is held by python3 (pid 4711)")


def test_what_fills_the_root_is_looked_for_in_it() -> None:
    reading = read_tool(OUTPUTS["df, full"].text)
    assert reading
    assert reading.faults[-1].remedy.startswith("sudo du -xsh /* | sort")


def test_a_port_held_on_windows_is_ended_as_on_windows() -> None:
    reading = read_tool(OUTPUTS["netstat of Windows"].text)
    assert reading
    assert reading.supports[0].remedy.startswith('`tasklist /fi "pid eq 4711"`')


def test_a_port_alone_has_the_name_of_its_adapter() -> None:
    reading = read_tool(OUTPUTS["ibstat of one port"].text)
    assert reading
    assert not reading.unknown
    assert reading.faults[0].says.startswith("mlx5_1:1 is Down")


def test_a_ping_that_names_nobody_gives_no_command_with_a_sentence_in_it() -> None:
    reading = read_tool(typed(OUTPUTS["ping, no way at all"]))
    assert reading
    assert reading.faults[0].remedy == "ip route get PEER; ip route"
    end = "--- 10.9.0.2 ping statistics ---\n2 packets transmitted, 0 received, 100% packet loss, time 1ms\n"
    reading = read_tool(f"$ ping 10.9.0.2\n{end}")
    assert reading
    assert reading.faults[0].says.startswith("10.9.0.2 answered none")


def test_a_row_of_tcp_without_its_state_is_cut() -> None:
    output = OUTPUTS["netstat, with UDP, users and inodes"].text
    reading = read_tool(output.replace("LISTEN", "      "))
    assert reading
    assert reading.unknown


def test_every_tool_of_the_table_is_tried_here() -> None:
    tried = {reading.tool for output in OUTPUTS.values() if (reading := read_tool(typed(output)))}
    only_in_the_corpus = {
        "chronyc sources",
        "timedatectl timesync-status",
        "ntpq",
        "iptables -L",
        "ufw",
        "firewalld",
        "nvidia-smi -L",
    }
    assert {tool.name for tool in known_tools()} <= tried | only_in_the_corpus


@pytest.mark.parametrize(
    "text", ["", "\n\n", "epoch 1 loss 2.3\nepoch 2 loss 2.1\n", "$ python train.py\nhello\n", "# a comment\n"]
)
def test_what_is_no_output_of_a_tool(text: str) -> None:
    assert read_tool(text) is None


def test_an_odd_output_in_a_file_that_is_called_as_a_tool_is_unknown() -> None:
    reading = read_tool("Schnittstelle funktioniert nicht\n", "ibstat.txt")
    assert reading
    assert reading.unknown
    assert not reading.healthy


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "KB": 1000, "MB": 10**6, "GB": 10**9, "B": 1}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("count", [1, 4, 512, 1024])
@pytest.mark.parametrize("gib", [0.03, 0.06, 1, 64, 500])
def test_df_counts_in_the_blocks_of_its_heading(unit: str, count: int, gib: float) -> None:
    """`df -m`, `df -B 4K`, `POSIXLY_CORRECT=1 df` and the like: 64 MiB and less is too small for NCCL."""
    block = count * UNITS[unit]
    size = max(1, int(gib * (1 << 30) / block))
    text = (
        f"Filesystem     {count}{unit}-blocks   Used Available Use% Mounted on\n"
        f"tmpfs        {size}      0     {size}   0% /dev/shm\n"
    )
    reading = read_tool(text)
    assert reading is not None
    small = size * block <= 64 << 20
    assert [fault.cause for fault in reading.faults] == (["shm-too-small"] if small else [])


@pytest.mark.parametrize("received", [0, 1, 50, 90, 99, 100])
@pytest.mark.parametrize(
    ("refusal", "cause"),
    [
        ("ping: sendmsg: Network is unreachable", "no-route"),
        ("ping: sendmsg: No route to host", "no-route"),
        ("ping: sendmsg: Operation not permitted", "firewall-drop"),
        ("ping: local error: message too long, mtu=1400", "mtu-blackhole"),
    ],
)
def test_a_refused_send_among_answers_is_no_missing_route(received: int, refusal: str, cause: str) -> None:
    answered = "64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.1 ms\n" if received else ""
    text = (
        f"PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.\n{answered}{refusal}\n\n--- 10.0.0.2 ping statistics ---\n"
        f"100 packets transmitted, {received} received, {100 - received}% packet loss, time 99000ms\n"
    )
    reading = read_tool(text)
    assert reading is not None
    faults = reading.faults
    expected = cause if received == 0 else "packet-loss" if received < 100 else None
    assert [fault.cause for fault in faults] == ([expected] if expected else [])
    for fault in faults:
        assert text.splitlines().index(refusal) + 1 in fault.lines


def test_of_several_pings_without_their_beginning_a_lost_one_is_not_passed_over() -> None:
    answered = (
        "2 packets transmitted, 2 received, 0% packet loss, time 1003ms\nrtt min/avg/max/mdev = 0.1/0.2/0.3/0.1 ms"
    )
    lost = "2 packets transmitted, 0 received, 100% packet loss, time 1055ms"
    for pings in ((answered, lost), (lost, answered), (answered, answered, lost)):
        reading = ping.read("\n".join(pings))
        assert reading is not None
        assert (reading.faults, "no answer" in reading.unknown) == ([], True)
    healthy = ping.read(f"{answered}\n{answered}")
    assert healthy is not None
    assert (healthy.faults, healthy.unknown) == ([], "")
