"""Real TCP between nodes: listen on the ports that matter, then dial every peer and tell what became of each dial.

Argument, JSON: {"run_id": str, "address": what to listen on, "listen": [[port, 0 for an ephemeral one; whether on all
addresses]]}.
Says {"event": "listening", "ports": [...], "errors": [...]}, then takes orders on stdin, one a line:
{"dial": [{"peer", "address", "port", "mode"}], "open_s": float, "reply_s": float}, and says for each
{"event": "dialled", "results": [...]}. The connections of an order stay open until all are dialled, as those of ranks do: a rule
may count them. Listeners stay up until stdin ends, for the peers that are still dialling.

Modes: "greet" reads the listener's greeting; "up" sends FULL bytes and waits for the receipt; "down" asks for FULL
bytes; "knock" only opens, for a port where somebody else listens; "trips" goes back and forth with single bytes, so
that every packet counts whatever the card merges. Full-size segments in one direction at a time show a
path that loses large packets, and which way.
"""

import concurrent.futures
import errno
import fcntl
import json
import os
import selectors
import socket
import struct
import sys
import termios
import threading
import time

from tool import say

FULL = 64 * 1024
TRIPS, TRIPS_S = 200, 1.0
DIALLERS = 64
HELD = 128  # connections kept open meanwhile: a rule may count them, a process may have no more than 1024
TRIES_S = (0.0, 0.1, 0.25, 0.45, 0.8, 1.2, 1.7)
"""When the tries of one dial start. The kernel itself repeats a lost SYN only after a second: a fresh socket asks again
sooner, and six lost in a row are no chance at any loss that `ping` lets pass."""


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
                send(sock, b"x" * FULL)
            elif mode == b"t":
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while sock.recv(1):
                    sock.sendall(b"x")
            sock.recv(1)
        except OSError:
            pass


def places(address, port):
    """Where to listen, the first choice first; all addresses is what remains of one that is not this machine's (NAT)."""
    everywhere = [(socket.AF_INET6, ("::", port)), (socket.AF_INET, ("0.0.0.0", port))]
    if not address:
        return everywhere
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return everywhere
    return [(found[0], found[4])] + everywhere


def listen(address, port, run_id):
    """A listener, as torch's store has it where `address` is empty; the port it got."""
    first = None
    for family, where in places(address, port):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            first = first or error  # a kernel without IPv6
            continue
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if family == socket.AF_INET6 and where[0] == "::":
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(where)
            listener.listen(512)
        except OSError as error:
            listener.close()
            first = first or error
            if address and error.errno != errno.EADDRNOTAVAIL:
                break
            continue
        threading.Thread(target=serve, args=(listener, run_id), daemon=True).start()
        return listener.getsockname()[1]
    raise first


def dial(target, run_id, open_s, reply_s, held):
    """One dial: open, stranger, refused, dropped (silence), rejected (the network said no), unsent (no port left to dial
    from), unresolvable, reset, silent or lost. `tries`: which of them opened, the kernel's own repetitions not counted; all
    of them where none did. `local` and `remote`: the addresses of both ends as numbers."""
    begun = time.monotonic()
    result = dict(target, errno=None, tries=0, retransmitted=None, local=None, remote=None)
    try:
        sock, result["tries"] = connect(result, open_s)
        knock = target.get("mode") == "knock"
        kept = not knock and len(held) < HELD
        if kept:
            held.append(sock)
        try:
            result["outcome"] = "open" if knock else converse(sock, target, run_id, reply_s)
            result["retransmitted"] = retransmitted(sock)
        finally:
            if not kept:
                sock.close() if knock else forget(sock)
    except socket.gaierror as error:
        result["outcome"], result["errno"] = "unresolvable", error.strerror
    except (socket.timeout, TimeoutError) as error:
        result["outcome"], result["tries"] = "dropped", error.args[0] if error.args else 0
    except OSError as error:
        result["errno"] = errno.errorcode.get(error.errno, str(error))
        if error.errno == errno.ECONNREFUSED:
            result["outcome"] = "refused"
        elif error.errno in (errno.ECONNRESET, errno.EPIPE):
            result["outcome"] = "reset"
        elif error.errno == errno.EADDRNOTAVAIL and result["remote"] and has_source(result["remote"], target["port"]):
            result["outcome"] = "unsent"
        else:
            result["outcome"] = "rejected"
    result["seconds"] = round(time.monotonic() - begun, 3)
    return result


def forget(sock):
    """Close what our own listener answered with a reset: else the port that it was dialled from stays taken for a minute
    (TIME_WAIT), and few may be left to those who come after us."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    sock.close()


def has_source(address, port):
    """Whether this machine has an address to dial this one from: without one of IPv6 the kernel says the same as without a
    port. UDP has ports of its own."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, port))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def connect(result, seconds):
    """The first of several tries to open, and which one it was: on a long way, or a busy host, it is the first, though others
    have been sent after it. TimeoutError carries their number."""
    found = socket.getaddrinfo(result["address"], result["port"], type=socket.SOCK_STREAM)
    family, kind, protocol, _, where = found[0]
    result["remote"] = where[0]
    begun = time.monotonic()
    pending, starts = [], TRIES_S
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                waited = time.monotonic() - begun
                if waited >= seconds:
                    raise TimeoutError(len(pending))
                if len(pending) < len(starts) and waited >= starts[len(pending)]:
                    sock = socket.socket(family, kind, protocol)
                    pending.append(sock)
                    sock.setblocking(False)
                    error = sock.connect_ex(where)
                    if error == errno.EADDRNOTAVAIL and len(pending) > 1:
                        pending.pop().close()  # no port is left for another try: those under way have to do
                        starts = TRIES_S[: len(pending)]
                        continue
                    if error not in (0, errno.EINPROGRESS):
                        raise OSError(error, os.strerror(error))
                    result["local"] = sock.getsockname()[0]
                    selector.register(sock, selectors.EVENT_WRITE, len(pending))
                following = starts[len(pending)] if len(pending) < len(starts) else seconds
                ready = selector.select(max(0.0, min(following, seconds) - (time.monotonic() - begun)))
                for key, _ in sorted(ready, key=lambda one: one[0].data):
                    error = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if error == errno.ETIMEDOUT:
                        selector.unregister(key.fileobj)  # the kernel gave up on this one; the others go on
                        continue
                    if error:
                        raise OSError(error, os.strerror(error))
                    pending.remove(key.fileobj)
                    return key.fileobj, key.data
        finally:
            for sock in pending:
                sock.close()


def retransmitted(sock):
    """How many segments had to be sent again, as Linux counts them in `struct tcp_info`; None elsewhere."""
    try:
        return struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]
    except (AttributeError, OSError, struct.error):
        return None


def converse(sock, target, run_id, seconds):
    sock.settimeout(seconds)
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
            send(sock, b"u" + b"x" * FULL)
            return "open" if receipt(sock) == 2 else "lost"
        if mode == "down":
            sock.sendall(b"d")
            return "open" if receive(sock, FULL) == FULL else "lost"
        if mode == "trips":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(b"t")
            begun = time.monotonic()
            for _ in range(TRIPS):
                sock.sendall(b"x")
                if receive(sock, 1) != 1:
                    return "lost"
                if time.monotonic() - begun > TRIPS_S:
                    break
    except (socket.timeout, TimeoutError):
        return "lost"
    return "open"


def send(sock, data):
    """All of it, with the socket's patience for every piece: `sendall` has it once for all, and a slow link is none that
    swallows packets. The first full segment goes alone until it has arrived: several at once are merged on their way (GSO),
    and virtual networks let pass what is merged and drop each of them alone, as a switch does."""
    view = memoryview(data)
    if hasattr(socket, "TCP_MAXSEG"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        view = view[sock.send(view[: sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)]) :]
        deadline = time.monotonic() + (sock.gettimeout() or 0)
        while on_the_way(sock):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.0005)
    while view:
        view = view[sock.send(view) :]


def receipt(sock):
    """The two bytes that acknowledge a transfer; waited for as long as less and less of it is on the way."""
    left = on_the_way(sock)
    while True:
        try:
            return receive(sock, 2)
        except (socket.timeout, TimeoutError):
            before, left = left, on_the_way(sock)
            if left is None or left >= before:
                raise


def on_the_way(sock):
    """Bytes that were sent and not acknowledged, as Linux tells (SIOCOUTQ); None elsewhere."""
    try:
        return struct.unpack("=i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
    except (AttributeError, OSError):
        return None


def main():
    arguments = json.loads(sys.argv[1])
    run_id = arguments["run_id"]
    ports, errors = [], []
    for port, everywhere in arguments["listen"]:
        try:
            ports.append(listen("" if everywhere else arguments["address"], port, run_id))
        except OSError as error:
            errors.append({"port": port, "errno": errno.errorcode.get(error.errno, ""), "text": str(error)})
    say({"event": "listening", "ports": ports, "errors": errors})
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        targets, held = order["dial"], []
        with concurrent.futures.ThreadPoolExecutor(max(1, min(DIALLERS, len(targets)))) as pool:
            dials = [pool.submit(dial, target, run_id, order["open_s"], order["reply_s"], held) for target in targets]
        for sock in held:
            forget(sock)
        say({"event": "dialled", "results": [one.result() for one in dials]})
    os._exit(0)


main()
