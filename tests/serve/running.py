"""A real server: `runbook serve` as a process of its own, on a free port."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 120.0


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    url: str
    login: str
    log: Path

    @property
    def host(self) -> str:
        return self.url.partition("//")[2]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: str = "") -> tuple[int, str]:
        connection = self.connection()
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def log_in(self) -> str:
        """The cookie of the session that the printed link gives."""
        connection = self.connection()
        try:
            connection.request("POST", self.login.removeprefix(self.url), headers={"Origin": self.url})
            response = connection.getresponse()
            response.read()
            assert response.status == 303, response.status
            return (response.getheader("set-cookie") or "").partition(";")[0]
        finally:
            connection.close()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code, and all that it said."""
        self.process.send_signal(number)
        return self.process.wait(60), self.log.read_text()


@contextmanager
def running(folder: Path, *arguments: str, listen: str = "127.0.0.1:0") -> Iterator[Running]:
    command = [sys.executable, "-m", "runbook", "serve", "--listen", listen, "--data", str(folder / "data"), *arguments]
    log = folder / "serve.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
        )
    try:
        yield _started(process, log)
    finally:
        process.kill()
        process.wait()


def _started(process: subprocess.Popen[bytes], log: Path) -> Running:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        text = log.read_text()
        if url := re.search(r"^runbook serves .* at (https?://\S+)\n", text, re.MULTILINE):
            login = re.search(r"five minutes: (\S+)", text)
            return Running(process, url[1], login[1] if login else "", log)
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log.read_text()}")
