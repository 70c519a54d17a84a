"""A stream whose far end does not read is closed all the same."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from checks.made_up_cluster import node

from runbook.transport import agent, stream
from runbook.transport.agent import AGENT_SOCKET_FILE, ASK_FRAME, OPENED_FRAME, AgentStream, agent_frame
from runbook.transport.stream import ProcessStream, Stream

MUCH = b"x" * (8 << 20)
SOON_S = 20.0


def closes(blocked: Stream) -> bool:
    """Whether it does while a thread writes more than the far end takes."""

    def write() -> None:
        with contextlib.suppress(OSError):
            blocked.write(MUCH)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(0.5)
    assert writer.is_alive()
    closing = threading.Thread(target=blocked.close, daemon=True)
    closing.start()
    closing.join(SOON_S)
    blocked.kill()
    return not closing.is_alive()


def test_a_program_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "END_TIMEOUT_S", 0.2)
    program = ProcessStream(["/bin/sleep", "60"])
    assert closes(program)
    program._process.wait()


def test_a_server_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "END_TIMEOUT_S", 0.2)
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.setenv("RUNBOOK_DATA", folder)
        listener.bind(str(Path(folder, AGENT_SOCKET_FILE)))
        listener.listen(1)
        served: list[socket.socket] = []

        def serve() -> None:
            served.append(listener.accept()[0])
            assert agent._read_frame(served[0])[0] == ASK_FRAME
            served[0].sendall(agent_frame(OPENED_FRAME))

        serving = threading.Thread(target=serve)
        serving.start()
        opened = AgentStream(node("node-a", connection="agent"), "", looks=False)
        serving.join()
        assert closes(opened)
        served[0].close()
