"""A lab whose hosts have no sshd: each runs an agent, as its ordinary user, that dials a server on this machine over TLS."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .cli import runbook_cli
from .host import Host
from .lab import CHECKOUT, Lab, merged
from .processes import LabError, wait_until

SITE = "/shared/site"


class AgentLab(Lab):
    """Reached over agents, as the hosts of a `Lab` are over SSH. `data` is the server's folder."""

    def __enter__(self) -> AgentLab:
        self.start()
        return self

    def _start(self) -> None:
        super()._start()
        for host in self:
            host.stop_sshd()
        site = self.shared / "site"
        for part in ("runbook", "schemas", "playbooks", "inventories"):
            shutil.copytree(CHECKOUT / part, site / part, ignore=shutil.ignore_patterns("__pycache__"))
        self.data = self.tmp / "data"
        self.data.mkdir(0o700)
        self.log = self.tmp / "serve.log"
        with socket.socket() as probe:
            probe.bind((self.bridge_address, 0))
            self.port = probe.getsockname()[1]
        added = subprocess.run(
            [
                sys.executable,
                *self.controller,
                "serve",
                "--data",
                str(self.data),
                "user",
                "add",
                "ann",
                "--role",
                "admin",
            ],
            input="correct horse battery staple\n",
            text=True,
            capture_output=True,
            env=self.environment(),
            check=False,
        )
        if added.returncode:
            raise LabError(f"no user: {added.stderr}")
        self.server = self.serve()
        self.agents: dict[str, subprocess.Popen[str]] = {}
        for host in self:
            self.enrol(host)
            self.start_agent(host)
        self.await_online(*self.names)

    # The server

    def serve(self) -> subprocess.Popen[str]:
        """Start the server, and wait until it answers."""
        with self.log.open("a") as log:
            server = subprocess.Popen(
                [
                    *(sys.executable, *self.controller, "serve", "--data", str(self.data)),
                    *("--listen", f"{self.bridge_address}:{self.port}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                cwd=self.tmp,
                env=self.environment(),
                start_new_session=True,
            )
        self.started.append(server)

        def answers() -> bool:
            if server.poll() is not None:
                raise LabError(f"the server ended: {self.log.read_text()}")
            with contextlib.suppress(OSError), socket.create_connection((self.bridge_address, self.port), 1):
                return (self.data / "agents.sock").exists()
            return False

        wait_until("the server answers", answers, timeout=60)
        return server

    def kill_server(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.wait(10)

    def states(self, name: str) -> list[str]:
        """Every state that a node has been in, in order."""
        with contextlib.closing(sqlite3.connect(self.data / "serve.db", timeout=10)) as db:
            return [
                state for (state,) in db.execute("SELECT state FROM agent_states WHERE name = ? ORDER BY id", (name,))
            ]

    def await_online(self, *names: str, timeout: float = 90) -> None:
        def online() -> bool:
            return all(self.told(name) == "" for name in names)

        wait_until("the agents are online", online, timeout=timeout, pause=0.1)

    def told(self, name: str) -> str:
        """What the server has against a node; empty for nothing."""
        from runbook.model.errors import Unreachable
        from runbook.transport.agent import AGENT_SOCKET_FILE, ask_node_status

        try:
            found = ask_node_status(self.data / AGENT_SOCKET_FILE, name)
        except Unreachable as error:
            return str(error)
        return found.says if found.cause else ""

    # Agents

    def enrol(self, host: Host, *options: str) -> None:
        made = runbook_cli(self, "serve", "enrol", "--data", self.data)
        if made.returncode:
            raise LabError(str(made))
        host.run(
            [*self._runbook(), "agent", "enrol", made.stdout.strip(), "--name", host.name, *options], env=self._env()
        )

    def start_agent(self, host: Host) -> None:
        log = (self.tmp / "hosts" / host.name / "agent.log").open("a")
        with log:
            self.agents[host.name] = host.popen(
                [*self._runbook(), "agent", "run"], env=self._env(), stdout=log, stderr=log
            )

    def agent_log(self, host: Host) -> str:
        return (self.tmp / "hosts" / host.name / "agent.log").read_text()

    def signal_agent(self, host: Host, number: int) -> None:
        """To the agent itself, and nothing that it started."""
        pids = [pid for pid, command in host.processes() if "runbook agent run" in command]
        if not pids:
            raise LabError(f"no agent runs on {host.name}")
        for pid in pids:
            host.signal(pid, number)

    def agent(self, host: Host, *words: str, check: bool = True) -> str:
        """Run `runbook agent WORDS` on a host."""
        return host.run([*self._runbook(), "agent", *words], env=self._env(), check=check).stdout

    def _runbook(self) -> list[str]:
        return [self.python, "-m", "runbook"]

    def _env(self) -> Mapping[str, str]:
        return {"PYTHONPATH": SITE}

    def environment(self) -> dict[str, str]:
        found = super().environment()
        return {**found, "RUNBOOK_DATA": str(self.data)} if hasattr(self, "data") else found

    def inventory(self, file: str = "inventory.yml", **overrides: Any) -> Path:
        over = {"defaults": {"connection": "agent", "ssh": None}}
        return super().inventory(file, **merged(over, overrides))
