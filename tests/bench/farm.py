"""Many nodes that are not there: one program that answers, over sockets, as the supervisors of healthy hosts would.

Their answers are those of a real lab (tests/attacks/recorded), under each node's own name and address. It is a process of its own, so
that what the controller costs can be told from what its nodes do.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
import zlib
from functools import cache
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parents[1] / "attacks" / "recorded" / "ib_no_subnet_manager.json"
SUPERVISOR_MARK, MESSAGE_MARK = b"\x1erunbook-supervisor ", b"\x1erunbook "
FIRST_FREE_PORT = 41_000

Json = Any


def address_of(number: int) -> str:
    return f"10.{64 + (number >> 16)}.{(number >> 8) & 255}.{number & 255}"


def name_of(number: int) -> str:
    return f"gn{number:04}"


@cache
def recorded() -> Json:
    """What one node of a healthy pair said, by program; its InfiniBand port is brought up."""
    said = json.loads(RECORDED.read_text())["said"]["node-a"]
    text = json.dumps(said["ibstat"][0]).replace("State: Initializing", "State: Active")
    text = text.replace("Base lid: 0", "Base lid: 7").replace("SM lid: 0", "SM lid: 1")
    return {
        "hello": said["hello"][0],
        "host_facts": said["host_facts"][0],
        "port": said["port"][0],
        "ibstat": json.loads(text),
    }


class Node:
    """The far end of one session."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.number = -1
        self._in = b""
        self._programs: dict[int, list[int]] = {}  # ports by program

    def feed(self, data: bytes) -> None:
        self._in += data
        while (end := self._in.find(b"\n")) >= 0:
            line, rest = self._in[:end], self._in[end + 1 :]
            if line.startswith(b"node #"):
                self.number, self._in = int(line[6:]), rest
                continue
            frame = {} if line.startswith(b"exit #") else json.loads(line)
            size = frame.get("bytes", 0) if frame else int(line[6:])
            if len(rest) < size:
                return
            self._in = rest[size:]
            if frame:
                self._obey(frame, zlib.decompress(rest[:size]) if size else b"")

    def _say(self, frame: Json, payload: bytes = b"") -> None:
        if payload:
            frame["bytes"] = len(payload)
        self.link.sendall(json.dumps(frame).encode() + b"\n" + payload)

    def _obey(self, frame: Json, payload: bytes) -> None:
        order, number = frame["do"], frame.get("id")
        if order == "config":
            self.link.sendall(SUPERVISOR_MARK)
            machine = f"{self.number:032x} net:[{self.number}]"
            folder = f"/home/x/.runbook/{frame['run_id']}/{frame['node']}"
            self._say({**recorded()["hello"], "machine": machine, "folder": folder, "time": time.time()})
        elif order == "beat":
            self._say({"event": "beat", "time": time.time(), "echo": frame.get("echo")})
        elif order == "call":
            self._say({"id": number, "event": "done", "answer": self._answer(frame["program"], frame["arguments"])})
        elif order == "put":
            self._say({"id": number, "event": "done"})
        elif order == "start":
            self._say({"id": number, "event": "started", "pid": 4242})
            if frame["argv"][:2] == ["/bin/sh", "-c"]:
                self._say({"id": number, "event": "exit", "code": 0, "timed_out": False})
                return
            wanted = json.loads(frame["argv"][-1])["listen"]
            ports = [port or FIRST_FREE_PORT + place for place, (port, _) in enumerate(wanted)]
            self._tell(number, {"event": "listening", "ports": ports, "errors": []})
        elif order == "feed":
            if payload:
                self._tell(frame["program"], self._dialled(json.loads(payload)))
            if frame.get("end"):
                self._say({"id": frame["program"], "event": "exit", "code": 0, "timed_out": False})
        elif order == "stop":
            self._say({"id": frame["program"], "event": "exit", "code": -15, "timed_out": False})
        elif order == "bye":
            self._say({"id": number, "event": "bye", "stopped": 0, "swept": 0, "left": []})

    def _tell(self, program: int, message: Json) -> None:
        line = MESSAGE_MARK + json.dumps(message).encode() + b"\n"
        for at in range(0, len(line), 65536):
            self._say({"id": program, "event": "output", "stream": 1}, line[at : at + 65536])

    def _answer(self, program: str, arguments: Json) -> Json:
        answer = recorded()[program]
        if program == "host_facts":
            own = {**answer["interfaces"]["eth0"], "addresses": [address_of(self.number)]}
            return {
                **answer,
                "hostname": name_of(self.number),
                "interfaces": {**answer["interfaces"], "eth0": own},
            }
        if program == "port":
            ports = {str(port): {"free": True} for port in arguments["ports"]}
            told = {"resolved": [arguments["address"]], "local": True} if arguments["address"] else None
            return {**answer, "address": told, "ports": ports}
        return answer

    def _dialled(self, order: Json) -> Json:
        """Every connection opens at once."""
        if "within_s" in order:
            awake = {"seconds": 0.1, "late_s": 0.0, "latest_s": 0.0, "pressure": 0.0, "shut_out": 0}
            return {"event": "dialled", "results": [None] * len(order["dial"]), "awake": awake}
        own = address_of(self.number)
        opened = {"outcome": "open", "errno": None, "seconds": 0.001, "tries": 1, "retransmitted": 0, "local": own}
        return {
            "event": "dialled",
            "results": [{**target, **opened, "remote": target["address"]} for target in order["dial"]],
        }


def serve(path: str) -> None:
    """Until whoever started us closes our stdin."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(4096)
    chooser = selectors.DefaultSelector()
    chooser.register(listener, selectors.EVENT_READ)
    chooser.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in chooser.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                link, _ = listener.accept()
                chooser.register(link, selectors.EVENT_READ, Node(link))
                continue
            node: Node = key.data
            try:
                data = node.link.recv(1 << 18)
                node.feed(data)
            except OSError:
                data = b""
            if not data:
                chooser.unregister(node.link)
                node.link.close()


if __name__ == "__main__":
    serve(sys.argv[1])
