"""Two network namespaces on one wire, for asking the kernel itself: a client (10.77.0.1) and a server (10.77.0.2).

Rules are only ever loaded inside these namespaces, and both are gone afterwards. Sockets are made in a namespace by
a thread that enters it, so a connection costs no process.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Literal

from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import Flow
from runbook.node.message import MESSAGE_MARK
from runbook.transport import node_answers, node_programs

Seen = Literal["open", "dropped", "rejected"]
CLIENT, SERVER = "10.77.0.1", "10.77.0.2"
CLIENT6, SERVER6 = "fd77::1", "fd77::2"
PROGRAM = node_programs.standalone_program("firewall_rules").decode()
TOOLS = ("ip", "nft", "iptables", "iptables-legacy")
CLONE_NEWNET = 0x40000000
SHORT, LONG = 0.25, 10.0
"""Patience, in seconds, where nothing is expected to come back, and where something is: a busy machine is no firewall."""
_numbers = itertools.count()


def collected(stdout: str) -> Evidence:
    """From all that the node program wrote: the last line that carries the marker, past the boundary of answers."""
    said = next(line for line in reversed(stdout.split("\n")) if line.startswith(MESSAGE_MARK))
    answer = node_answers.checked_message(node_answers.FIREWALL_RULES_MESSAGES, said[len(MESSAGE_MARK) :].encode())
    assert answer
    return Evidence.of(answer)


def missing() -> str | None:
    """Why these tests cannot run here; None when they can."""
    if sys.platform != "linux":
        return "not Linux"
    if os.geteuid() != 0:
        return "not root"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
    return f"not installed: {', '.join(absent)}" if absent else None


class Pair:
    def __init__(self) -> None:
        number = f"{os.getpid()}x{next(_numbers)}"
        self.client, self.server = f"nfc{number}", f"nfs{number}"
        self._holders: dict[str, tuple[subprocess.Popen[str], int]] = {}

    def __enter__(self) -> Pair:
        c, s = self.client, self.server
        script = f"""set -e
ip netns add {c}; ip netns add {s}
ip link add eth0 netns {c} type veth peer name eth0 netns {s}
for n in {c} {s}; do ip -n $n link set lo up; ip -n $n link set eth0 up; done
ip -n {c} addr add {CLIENT}/24 dev eth0; ip -n {s} addr add {SERVER}/24 dev eth0
for n in {c} {s}; do ip netns exec $n sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0; done
ip -n {c} addr add {CLIENT6}/64 dev eth0 nodad; ip -n {s} addr add {SERVER6}/64 dev eth0 nodad
"""
        subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for holder, _ in self._holders.values():
            holder.kill()
            holder.communicate()
        for name in (self.client, self.server):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def enter(self, where: str) -> list[str]:
        """The words that put a command into a namespace."""
        if where not in self._holders:
            return ["ip", "netns", "exec", where]
        return ["nsenter", "-t", str(self._holders[where][1]), "-m", "-n", "-p"]

    def keep(self, where: str, script: str) -> None:
        """Run `script` in mounts and process ids of its own inside `where`; later commands are run in there too.

        What it starts lives until the pair ends: a firewall with a daemon and files in /etc can be had like this.
        """
        unshare = ["unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child"]
        script += "\necho ready; exec sleep 600"
        holder = subprocess.Popen(
            ["ip", "netns", "exec", where, *unshare, "sh", "-e", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert holder.stdout is not None
        said = []
        for line in holder.stdout:
            said.append(line)
            if line == "ready\n":
                break
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        assert children, "".join(said)
        self._holders[where] = (holder, int(children[0]))

    def sh(self, where: str, script: str) -> str:
        """Run a shell script in a namespace; its failure is the test's."""
        words = [*self.enter(where), "sh", "-e", "-c", script]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def allow(self, where: str, command: str) -> None:
        """Run a remedy as its reader would, but as root."""
        self.sh(where, command.replace("sudo ", ""))

    def load(self, where: str, ruleset: str) -> None:
        assert self.try_to_load(where, ruleset), ruleset

    def try_to_load(self, where: str, ruleset: str) -> bool:
        words = [*self.enter(where), "nft", "-f", "-"]
        return subprocess.run(words, input=ruleset, capture_output=True, text=True, timeout=60).returncode == 0

    def connect(self, port: int, version: int = 4, patience: float = SHORT) -> Seen:
        """What a client sees that dials a port on which the server listens.

        On so short a wire an ICMPv6 error comes back while the dialer still holds its socket, and the kernel heeds
        only the one to its next attempt, a second later.
        """
        patience = max(patience, 1.6) if version == 6 else patience
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        listener, dialer = _socket_in(self.server, family), _socket_in(self.client, family)
        with listener, dialer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((SERVER if version == 4 else SERVER6, port))
            listener.listen(8)
            dialer.settimeout(patience)
            dialer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            try:
                dialer.connect((SERVER if version == 4 else SERVER6, port))
            except TimeoutError:
                return "dropped"
            except OSError as error:
                if error.errno not in REJECTIONS:
                    raise
                return "rejected"
            return "open"

    def evidence(self, where: str, *peers: str) -> Evidence:
        """By the real node program."""
        words = [sys.executable, "-I", "-c", PROGRAM, json.dumps({"peers": peers})]
        done = subprocess.run([*self.enter(where), *words], capture_output=True, text=True, timeout=120, check=True)
        return collected(done.stdout)

    def flow(self, port: int, version: int = 4) -> Flow:
        return Flow(CLIENT, SERVER, port) if version == 4 else Flow(CLIENT6, SERVER6, port)


REJECTIONS = {
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EPERM,
    errno.EACCES,
    errno.EPROTO,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.ENONET,
}


def _socket_in(namespace: str, family: int) -> socket.socket:
    made: list[socket.socket] = []
    trouble: list[int] = []

    def work() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{namespace}").open() as handle:
            if libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
                trouble.append(ctypes.get_errno())
                return
        made.append(socket.socket(family, socket.SOCK_STREAM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert made, f"setns: {os.strerror(trouble[0])}"
    return made[0]
