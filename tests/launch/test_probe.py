"""The one line that launch scripts hand to Python, asked of real sockets and a real resolver."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from lab.processes import wait_until
from ports import free_port

from runbook.launch.preconditions import RENDEZVOUS_PROBE

PYTHONS = sorted(
    {sys.executable, *(str(path) for path in Path("/usr/bin").glob("python3.?*") if path.name[8:].isdecimal())}
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as sockets:
        yield sockets


def asked(address: str, port: int = 0, *, several: bool = False, python: str = sys.executable) -> tuple[int, str]:
    command = [python, "-I", "-c", RENDEZVOUS_PROBE, address, str(port), str(int(several))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def listening(stack: ExitStack, address: str = "", family: int = socket.AF_INET) -> int:
    door = stack.enter_context(socket.socket(family))
    door.bind((address, 0))
    door.listen()
    return int(door.getsockname()[1])


def test_no_shell_finds_anything_special_in_it() -> None:
    assert set("".join(filter(lambda one: not one.isalnum(), RENDEZVOUS_PROBE))) <= set(" .,;:=()[]+-*/_")


def test_python_3_6_could_read_it() -> None:
    ast.parse(RENDEZVOUS_PROBE, feature_version=(3, 6))


@pytest.mark.parametrize("python", PYTHONS)
def test_nothing_in_the_way(python: str) -> None:
    assert asked("127.0.0.1", free_port(), python=python) == (0, "")
    assert asked("localhost", python=python) == (0, "")
    assert asked("::1", python=python) == (0, "")
    assert asked("10.0.0.1", several=True, python=python) == (0, "")
    assert asked("fe80::1", several=True, python=python) == (0, "")


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", ["gpu-1.invalid", "no such host", "x" * 300, "a..b", "256.1.1.1.1"])
def test_a_name_that_does_not_resolve(name: str, python: str) -> None:
    code, says = asked(name, several=True, python=python)
    assert (code, says.count("\n")) == (94, 1)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.1.1", "::1"])
def test_loopback_is_wrong_for_several_nodes_only(name: str) -> None:
    assert asked(name, several=True) == (95, "")
    assert asked(name, several=False) == (0, "")


@pytest.mark.parametrize("python", PYTHONS)
def test_a_port_that_somebody_listens_on(stack: ExitStack, python: str) -> None:
    for address, family in (("", socket.AF_INET), ("127.0.0.1", socket.AF_INET), ("::", socket.AF_INET6)):
        code, says = asked("127.0.0.1", listening(stack, address, family), python=python)
        assert (code, says.count("\n")) == (97, 1)
        assert "in use" in says


@pytest.mark.parametrize("port", [65536, 99999])
def test_a_port_that_does_not_exist(port: int) -> None:
    assert asked("127.0.0.1", port)[0] == 97


def test_the_closing_connections_of_the_last_job_are_not_in_the_way(stack: ExitStack) -> None:
    """A server that closes first leaves its port in TIME_WAIT for a minute."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        accepted, _ = server.accept()
        accepted.close()
        assert client.recv(1) == b""
        client.close()
    wait_until("the port waits", lambda: waits(port))
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("", port))
    assert asked("127.0.0.1", port) == (0, "")


def waits(port: int) -> bool:
    """Whether the kernel has a connection of this local port in TIME_WAIT (06)."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "06" for line in lines)


def test_a_module_in_the_working_folder_is_not_taken_for_pythons_own(tmp_path: Path) -> None:
    for name in ("socket", "ipaddress", "ntpath", "os"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    command = [sys.executable, "-I", "-c", RENDEZVOUS_PROBE, "127.0.0.1", "0", "0"]
    assert subprocess.run(command, cwd=tmp_path, timeout=60, check=False).returncode == 0
