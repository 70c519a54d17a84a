"""`runbook serve` under load: simulated agents, tabs that look, one rank that writes 10 MB/s; what people and agents wait for,
what it costs the server, a restart in the middle; a log of 1 GB; the report of 256 nodes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from report.varied import linked, write_run

from runbook.agent.protocol import Enrolment
from runbook.report.html.render import render
from runbook.serve.agent_fleet import Fleet
from runbook.serve.change_stream import Changed
from runbook.serve.people import People
from runbook.serve.run_processes import process_start_mark
from runbook.serve.settings import ServeSettings
from runbook.serve.store import Store
from runbook.transport.agent import (
    AGENT_SOCKET_FILE,
    ASK_FRAME,
    FRAME_HEADER,
    OPENED_FRAME,
    StreamRequest,
    agent_frame,
    short_socket_address,
)

from .cost import BenchError
from .simulated_agents import JOB
from .table import verdict

AGENTS, RANKS, TABS = 1000, 8, 20
UP_S, WINDOW_S, BACK_S = 60.0, 60.0, 45.0
"""For the agents to be let in, for measuring, and for them to come back after a restart."""
TAB_EVERY_S = 5.0
LOG_BYTES = 1 << 30
GROUP = """\
name: train
rendezvous: {{port: 29500}}
defaults: {{connection: agent, gpus: {gpus}}}
nodes:
  "gn[{first}-{last}]": {{}}
launch: {{command: [python, train.py]}}
"""


def serve() -> list[str]:
    folder = Path(tempfile.mkdtemp(prefix="runbook-bench-serve-"))
    try:
        with _Bench(folder) as bench:
            return [*bench.fleet(), *bench.log(), _report(folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Bench:
    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._log = folder / "serve.log"
        self._data.mkdir(mode=0o700)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._tokens, self._person = self._enrolled()

    def __enter__(self) -> _Bench:
        self._server = self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.wait()

    def _enrolled(self) -> tuple[dict[str, str], str]:
        """The token of every node, and that of a person."""
        settings = ServeSettings(self._data, "127.0.0.1", self._port)
        store = Store(self._data / "serve.db")
        fleet, people = Fleet(store, settings, Changed()), People(store)
        people.add("bench", "admin")
        names = [f"gn{number:04d}" for number in range(AGENTS)]
        tokens = {
            name: fleet.enrol_host(Enrolment.of(fleet.make_enrolment_string("bench", name)).secret, name)[1]
            for name in names
        }
        person = people.make_token("bench", "admin", "bench")[1]
        store.close()
        self._train(names)
        return tokens, person

    def _train(self, names: list[str]) -> None:
        """A group of all nodes, and its run that goes on: the page has a cell for each rank."""
        (self._data / "groups").mkdir()
        (self._data / "groups" / "train.yml").write_text(
            GROUP.format(gpus=RANKS, first=names[0][2:], last=names[-1][2:])
        )
        run = self._data / "runs" / JOB
        run.mkdir(parents=True)
        began = {
            "event": "run-started", "time": time.time(), "run_id": JOB, "version": "0", "playbook": "p", "inventory": "p",
            "nodes": names, "stages": ["train"], "run_dir": str(run),
        }  # fmt: skip
        launch = {"event": "stage-started", "time": time.time(), "stage": "train", "check": "launch", "nodes": names}
        (run / "events.jsonl").write_text(f"{json.dumps(began)}\n{json.dumps(launch)}\n")
        ours = {"pid": os.getpid(), "began": process_start_mark(os.getpid())}
        about = {"version": 1, "person": "bench", "group": "train", "at": time.time(), "command": ["runbook"], **ours}
        (run / "started.json").write_text(json.dumps(about))

    def _start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "runbook",
            "serve",
            "--listen",
            f"127.0.0.1:{self._port}",
            "--data",
            str(self._data),
        ]
        with self._log.open("ab") as log:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.poll() is None:
            with contextlib.suppress(OSError):
                if self._get("/healthz")[0] == 200:
                    return server
            time.sleep(0.05)
        raise BenchError(f"the server did not start: {self._log.read_text()[-2000:]}")

    def _get(self, path: str) -> tuple[int, float, bytes]:
        """Status, seconds, and the page."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        begun = time.perf_counter()
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._person}"})
            response = connection.getresponse()
            body = response.read()
            return response.status, time.perf_counter() - begun, body
        finally:
            connection.close()

    def _online(self) -> int:
        nodes = json.loads(self._get("/api/v1/fleet")[2])["nodes"]
        return sum(node["state"] == "ONLINE" for node in nodes)

    def _until_online(self, limit_s: float) -> float:
        begun = time.monotonic()
        while self._online() < AGENTS:
            if time.monotonic() - begun > limit_s:
                return float("inf")
            time.sleep(0.5)
        return time.monotonic() - begun

    def fleet(self) -> list[str]:
        given = {
            "url": f"http://127.0.0.1:{self._port}", "tokens": self._tokens, "ranks": RANKS, "writes": "gn0000",
        }  # fmt: skip
        command = [sys.executable, str(Path(__file__).with_name("simulated_agents.py"))]
        agents = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert agents.stdin is not None
        agents.stdin.write(json.dumps(given).encode())
        agents.stdin.close()
        agents.stdin = None
        try:
            up_s = self._until_online(UP_S)
            measured = self._window()
            self._server.send_signal(signal.SIGKILL)
            self._server.wait()
            self._server = self._start()
            back_s = self._until_online(2 * BACK_S)
            agents.terminate()
            told = json.loads(agents.communicate(timeout=120)[0])
        finally:
            agents.kill()
            agents.wait()
        beats = _p99(told["beats"])
        return [
            f"serve: {AGENTS} simulated agents with {RANKS} ranks each, {TABS} tabs, one rank writing 10 MB/s; {os.cpu_count()} CPUs",
            f"  first all online after {up_s:.0f} s; carried {told['written'] / 1e6:.0f} MB of one rank",
            *measured,
            _goal("heartbeat, p99", beats * 1000, "ms", 100),
            _goal("all back after a kill and a start", back_s, "s", 30),
        ]

    def _window(self) -> list[str]:
        pages, commands = list[float](), list[float]()
        over = threading.Event()
        tabs = [threading.Thread(target=self._tab, args=(number, over, pages)) for number in range(TABS)]
        before, size = _cost(self._server.pid), self._database()
        begun = time.monotonic()
        with self._stream("gn0000"):
            for tab in tabs:
                tab.start()
            while time.monotonic() - begun < WINDOW_S:
                at = time.perf_counter()
                with self._stream(f"gn{len(commands) * 7 % (AGENTS - 1) + 1:04d}"):
                    commands.append(time.perf_counter() - at)
                time.sleep(0.5)
        over.set()
        for tab in tabs:
            tab.join()
        seconds = time.monotonic() - begun
        cpu = 100 * (_cost(self._server.pid)[0] - before[0]) / seconds
        grown = (self._database() - size) / seconds * 86400
        return [
            _goal(f"page of the fleet, p99 of {len(pages)}", _p99(pages) * 1000, "ms", 200),
            f"    median {statistics.median(pages) * 1000:.0f} ms",
            _goal(f"command to an agent, p99 of {len(commands)}", _p99(commands) * 1000, "ms", 300),
            _goal("CPU of the server, of one core", cpu, "%", 40),
            _goal("memory of the server", _cost(self._server.pid)[1] / 1e6, "MB", 250),
            _goal("database, a day", max(0.0, grown) / 1e6, "MB", 50),
        ]

    def _tab(self, number: int, over: threading.Event, pages: list[float]) -> None:
        stream = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        stream.request("GET", "/events?topic=fleet", headers={"Authorization": f"Bearer {self._person}"})
        over.wait(number * TAB_EVERY_S / TABS)
        while not over.is_set():
            status, seconds, page = self._get("/")
            if status != 200 or page.count(b"<small>") < RANKS * AGENTS:
                raise BenchError(f"the page of the fleet answers {status}, and not with every rank")
            pages.append(seconds)
            over.wait(TAB_EVERY_S)
        stream.close()

    @contextlib.contextmanager
    def _stream(self, node: str) -> Iterator[None]:
        """An open stream to a node, of which everything is read."""
        with socket.socket(socket.AF_UNIX) as asked, short_socket_address(self._data / AGENT_SOCKET_FILE) as address:
            asked.settimeout(60)
            asked.connect(address)
            asked.sendall(
                agent_frame(
                    ASK_FRAME, msgspec.json.encode(StreamRequest(node, True, "true", "python3", "~/.runbook", "bench"))
                )
            )
            kind, length = FRAME_HEADER.unpack(asked.recv(FRAME_HEADER.size))
            if kind != OPENED_FRAME:
                raise BenchError(f"no stream to {node}: {asked.recv(length)!r}")
            over = threading.Event()

            def swallow() -> None:
                with contextlib.suppress(OSError):
                    while not over.is_set() and asked.recv(1 << 20):
                        pass

            reader = threading.Thread(target=swallow)
            reader.start()
            try:
                yield
            finally:
                over.set()
                with contextlib.suppress(OSError):
                    asked.shutdown(socket.SHUT_RDWR)
                reader.join()

    def _database(self) -> int:
        return sum(file.stat().st_size for file in self._data.glob("serve.db*"))

    def log(self) -> list[str]:
        """A log of 1 GB is opened and searched."""
        folder = self._data / "runs" / "big"
        (folder / "logs").mkdir(parents=True)
        started = {
            "event": "run-started",
            "time": time.time(),
            "run_id": "big",
            "version": "0",
            "playbook": "p",
            "inventory": "i",
        }
        (folder / "events.jsonl").write_text(
            json.dumps({**started, "nodes": ["n"], "stages": [], "run_dir": "x"}) + "\n"
        )
        block = b"".join(
            b"step %07d loss 0.123456 lr 1.0e-4 tokens/s 412345 grad_norm 0.98 of rank 0 on gn0000\n" % n
            for n in range(12_000)
        )
        with (folder / "logs" / "rank-00000.n.l0.out").open("wb") as file:
            while file.tell() < LOG_BYTES:
                file.write(block)
            file.write(b"NCCL WARN the needle\n")
        file_id = next(
            one["id"] for one in json.loads(self._get("/api/v1/runs/big/logs")[2])["files"] if "rank" in one["name"]
        )

        def timed(query: str) -> float:
            status, seconds, body = self._get(f"/runs/big/logs?file={file_id}{query}")
            if status != 200 or (query and b"<b>1</b> match" not in body):
                raise BenchError(f"the log page answers {status}")
            return seconds

        opened = statistics.median(timed("") for _ in range(5))
        return [
            f"serve: a log of {LOG_BYTES / 1e9:.1f} GB",
            _goal("opened at its end", opened * 1000, "ms", 300),
            _goal("searched, capitals count", min(timed("&q=the+needle&case=same") for _ in range(2)), "s", 3),
            _goal("searched, capitals do not count", min(timed("&q=THE+needle") for _ in range(2)), "s", 3),
        ]


def _report(folder: Path) -> str:
    run = folder / "report"
    run.mkdir()
    write_run(run, linked(256, 12))
    begun = time.perf_counter()
    size = len(render(run))
    return _goal(f"the report of 256 nodes ({size / 1000:.0f} kB)", time.perf_counter() - begun, "s", 3)


def _goal(says: str, value: float, unit: str, goal: float) -> str:
    return f"  {says}: {value:.3g} {unit}  (goal < {goal:g} {unit})  {verdict(value < goal)}"


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else float("inf")


def _cost(pid: int) -> tuple[float, int]:
    """Seconds of CPU so far, and bytes in memory."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
