"""`make serve`: the server's page with two agents on this machine and a group that trains on them; Ctrl-C ends all of
it.

python examples/serve_here.py DATA        a folder that is made anew each time"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

RUNBOOK = (sys.executable, "-m", "runbook")
PORT = 8400
START_S = 60.0
END_S = 20.0
SIOCGIFADDR = 0x8915  # Linux
MARK = "made-by-serve-here"
"""A file in DATA: no other folder is removed."""

GROUP = """\
name: train
rendezvous: {{port: 29500, backend: gloo}}
network: {{interface: {interface}, ports: 29500-29510}}
defaults: {{connection: agent, processes: 2, python: {python}, workdir: {work}}}
nodes:
  one: {{address: {address}}}
  two: {{address: 127.0.0.2}}  # noqa: inventory.loopback-address
launch:
  command: [{python}, {example}, --steps, "600", --pause, "0.2"]
  env: {{OMP_NUM_THREADS: "1"}}
"""


def main() -> int:
    data = Path(sys.argv[1]).absolute()
    if data.exists():
        if not (data / MARK).exists():
            sys.exit(f"{data} is there, and was not made by this program: name another folder")
        shutil.rmtree(data)
    (data / "groups").mkdir(mode=0o700, parents=True)
    data.chmod(0o700)
    (data / MARK).touch()
    group = data / "groups" / "train.yml"
    address = own_address()
    words = {
        "address": address,
        "interface": interface_of(address),
        "work": data / "work",
        "python": sys.executable,
        "example": Path(__file__).with_name("train_ddp.py"),
    }
    group.write_text(GROUP.format(**{name: json.dumps(str(path)) for name, path in words.items()}))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as held:
        held.enter_context(running("serve", "--listen", f"127.0.0.1:{free_port()}", "--data", str(data)))
        until(lambda: (data / "agents.sock").exists(), "the server to answer")
        for name in ("one", "two"):
            home = str(data / "agents" / name)
            string = told("serve", "enrol", "--data", str(data))
            told("agent", "enrol", string, "--name", name, "--dir", home)
            as_root = ["--as-root"] if os.geteuid() == 0 else []
            held.enter_context(running("agent", "run", "--dir", home, *as_root))
        held.callback(stop_all, group)
        print("two agents run; open the link, look at Groups, start `train`; Ctrl-C ends everything", flush=True)
        while True:
            time.sleep(3600)
    return 0


@contextlib.contextmanager
def running(*words: str) -> Iterator[None]:
    """In a session of its own, so that Ctrl-C reaches this program first."""
    process = subprocess.Popen([*RUNBOOK, *words], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def told(*words: str) -> str:
    done = subprocess.run([*RUNBOOK, *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def stop_all(group: Path) -> None:
    """End the launches that run, while the server is there: they would outlive it."""
    print("stopping what runs", flush=True)
    environment = {**os.environ, "RUNBOOK_DATA": str(group.parent.parent)}
    for id in jobs(group, environment):
        subprocess.run([*RUNBOOK, "stop", id, "--now", "-i", str(group)], env=environment, check=False)


def jobs(group: Path, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [*RUNBOOK, "ps", "-i", str(group), "-o", "json"], env=environment, stdout=subprocess.PIPE, check=False
    )
    with contextlib.suppress(ValueError, KeyError):
        return [job["job"] for job in json.loads(done.stdout)["jobs"] if any(rank["alive"] for rank in job["ranks"])]
    return []


def free_port() -> int:
    """The usual one, or any where that is taken."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", PORT))
        return PORT
    return 0


def own_address() -> str:
    """Of this machine, not of its loopback: nodes must not be told to dial themselves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # which sends nothing: it only asks for the route
        return str(probe.getsockname()[0])
    sys.exit("this machine has no network but loopback, and nodes cannot be told to dial that")


def interface_of(address: str) -> str:
    """The network interface that has it: by the host's name alone, gloo may find the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                if socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, name.encode().ljust(256, b"\0"))[20:24]) == address:
                    return name
    sys.exit(f"which network interface has {address}?")


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_S
    while not done():
        if time.monotonic() > deadline:
            sys.exit(f"waited {START_S:g} s for {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
