"""The program that dials, where this machine has few sockets to give."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from runbook.node import mesh


def dialled(monkeypatch: pytest.MonkeyPatch, error: int, refusals: list[bool]) -> Any:
    """What a dial of a listener of our own tells where the kernel refuses it those sockets."""
    program = mesh.MeshProgram("run-1")
    left: list[bool] = [False]
    made: list[socket.socket] = []

    class Short(socket.socket):
        def __init__(self, *of: Any, **more: Any) -> None:
            if "fileno" not in more and (left.pop(0) if len(left) > 1 else left[0]):
                raise OSError(error, "no socket")
            super().__init__(*of, **more)
            made.append(self)

    monkeypatch.setattr(socket, "socket", Short)
    port = program.listen("127.0.0.1", 0)
    left[:] = refusals
    target = {"address": "127.0.0.1", "port": port, "mode": "greet"}
    results: list[Any] = []
    dial = mesh.dial_target(target, {"open_s": 0.5, "reply_s": 2.0, "hold": False}, "run-1", [], program.loop)
    program.loop.start(dial, results.append)
    while not results:
        program.loop.turn()
    for one in made:
        one.close()
    return results[0]


@pytest.mark.parametrize("error", mesh.SOCKET_SHORTAGE_ERRNOS)
def test_a_machine_without_sockets_tells_nothing_of_the_way(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "SOCKET_WAIT_TIMEOUT_S", 0.2)
    result = dialled(monkeypatch, error, [True])
    assert (result["outcome"], result["errno"]) == ("unmeasured", errno.errorcode[error])


@pytest.mark.parametrize("error", mesh.SOCKET_SHORTAGE_ERRNOS)
@pytest.mark.parametrize("refused", [1, 2, 15])
def test_a_dial_waits_for_a_socket(error: int, refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None: it opened at its first try."""
    assert dialled(monkeypatch, error, [True] * refused + [False]) is None


def test_connections_that_came_together_are_greeted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Recorded(socket.socket):
        def __init__(self, *of: Any, **more: Any) -> None:
            super().__init__(*of, **more)
            made.append(self)

    monkeypatch.setattr(socket, "socket", Recorded)
    program = mesh.MeshProgram("run-1")
    port = program.listen("127.0.0.1", 0)
    came = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    for _ in range(3):  # accepted, begun, written to
        program.loop.turn()
    for one in came:
        one.setblocking(False)
        assert one.recv(1000)
    for one in made:
        one.close()
