"""Real TCP between nodes: listen on the ports that matter, then dial every peer and tell what became of each dial.

Argument, JSON: {"run_id": str, "address": what to listen on, "listen": [ports, 0 for an ephemeral one]}.
Says {"event": "listening", "ports": [...], "errors": [...]}, then takes one order on stdin:
{"dial": [{"peer", "address", "port", "mode"}], "timeout_s": float} and says {"event": "dialled", "results": [...]}.
Listeners stay up until stdin ends, for the peers that are still dialling.

Modes: "greet" reads the listener's greeting; "up" sends FULL bytes and waits for the receipt; "down" asks for FULL
bytes. Full-size segments in one direction at a time show a path that loses large packets, and which way.
"""

import concurrent.futures
import errno
import json
import os
import socket
import sys
import threading
import time

from tool import say

FULL = 64 * 1024
DIALLERS = 64


def greeting(run_id):
    return ("runbook " + run_id + "\n").encode()


def receive(sock, count):
    got = 0
    while got < count:
        data = sock.recv(min(65536, count - got))
        if not data:
            break
        got += len(data)
    return got


def serve(listener, run_id):
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(sock, run_id), daemon=True).start()


def answer(sock, run_id):
    with sock:
        sock.settimeout(10)
        try:
            sock.sendall(greeting(run_id))
            mode = sock.recv(1)
            if mode == b"u":
                receive(sock, FULL)
                sock.sendall(b"ok")
            elif mode == b"d":
                sock.sendall(b"x" * FULL)
            sock.recv(1)
        except OSError:
            pass


def listen(address, port, run_id):
    """A listener and the port it got. An address that is not this machine's (NAT) falls back to all addresses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        family, target = found[0][0], found[0][4]
    except OSError:
        target = ("::" if family == socket.AF_INET6 else "0.0.0.0", port)
    for where in (target, ("::" if family == socket.AF_INET6 else "0.0.0.0", port)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(where)
            listener.listen(512)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRNOTAVAIL and where is target:
                continue
            raise
        threading.Thread(target=serve, args=(listener, run_id), daemon=True).start()
        return listener.getsockname()[1]


def dial(target, run_id, timeout):
    """One dial: open, stranger, refused, dropped (silence), rejected (the network said no), unresolvable or lost."""
    begun = time.monotonic()
    result = dict(target, errno=None)
    try:
        result["outcome"] = attempt(target, run_id, timeout)
    except socket.gaierror as error:
        result["outcome"], result["errno"] = "unresolvable", error.strerror
    except (socket.timeout, TimeoutError):
        result["outcome"] = "dropped"
    except OSError as error:
        result["errno"] = errno.errorcode.get(error.errno, str(error))
        if error.errno == errno.ECONNREFUSED:
            result["outcome"] = "refused"
        elif error.errno in (errno.ECONNRESET, errno.EPIPE):
            result["outcome"] = "reset"
        else:
            result["outcome"] = "rejected"
    result["seconds"] = round(time.monotonic() - begun, 3)
    return result


def attempt(target, run_id, timeout):
    with socket.create_connection((target["address"], target["port"]), timeout) as sock:
        sock.settimeout(timeout)
        expected = greeting(run_id)
        got = b""
        try:
            while len(got) < len(expected):
                data = sock.recv(len(expected) - len(got))
                if not data:
                    return "stranger"
                got += data
        except (socket.timeout, TimeoutError):
            return "silent"
        if got != expected:
            return "stranger"
        mode = target.get("mode", "greet")
        try:
            if mode == "up":
                sock.sendall(b"u" + b"x" * FULL)
                return "open" if receive(sock, 2) == 2 else "lost"
            if mode == "down":
                sock.sendall(b"d")
                return "open" if receive(sock, FULL) == FULL else "lost"
        except (socket.timeout, TimeoutError):
            return "lost"
        return "open"


def main():
    arguments = json.loads(sys.argv[1])
    run_id = arguments["run_id"]
    ports, errors = [], []
    for port in arguments["listen"]:
        try:
            ports.append(listen(arguments["address"], port, run_id))
        except OSError as error:
            errors.append({"port": port, "errno": errno.errorcode.get(error.errno, ""), "text": str(error)})
    say({"event": "listening", "ports": ports, "errors": errors})
    line = sys.stdin.readline()
    if line.strip():
        order = json.loads(line)
        timeout = order["timeout_s"]
        targets = order["dial"]
        with concurrent.futures.ThreadPoolExecutor(max(1, min(DIALLERS, len(targets)))) as pool:
            results = list(pool.map(lambda target: dial(target, run_id, timeout), targets))
        say({"event": "dialled", "results": results})
        sys.stdin.read()
    os._exit(0)


main()
