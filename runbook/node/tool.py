"""What the node programs share: finding and running the node's tools, and saying one thing. Pushed beside them."""

import errno
import json
import os
import signal
import subprocess
import threading

MARK = "\x1erunbook "
MOST = 16 << 20
TOOL_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/bin", "/bin")

LACKS = (
    errno.EAGAIN,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
)  # what this login does not get; the tool says nothing by it


def say(message):
    line = (MARK + json.dumps(message) + "\n").encode()
    while line:
        line = line[os.write(1, line) :]  # a signal cuts what the pipe has no room for


def find(tool):
    """A tool on PATH, or where administrators' tools lie: an ordinary user's PATH has no sbin."""
    folders = os.environ.get("PATH", "").split(os.pathsep) + list(TOOL_FOLDERS)
    for folder in folders:
        path = os.path.join(folder, tool)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def run(argv, timeout, text=None):
    """Run a tool in a group of its own and kill the whole group at the deadline; `text` for its stdin, which a pipe holds.

    Raises OSError or RuntimeError where this login may start nothing more: then nothing was looked at.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, LC_ALL="C"),
            start_new_session=True,
        )
    except OSError as error:
        if error.errno in LACKS:
            raise
        return {"code": None, "out": "", "err": str(error)}
    parts = {"out": [], "err": []}
    ended = threading.Thread(target=process.wait, daemon=True)
    readers = [
        threading.Thread(target=keep, args=(stream, parts[name]), daemon=True)
        for name, stream in (("out", process.stdout), ("err", process.stderr))
    ]
    try:
        for thread in [ended] + readers:
            thread.start()
    except RuntimeError:  # no more threads for us: nobody would wait for the tool
        kill_group(process)
        raise
    if text is not None:
        try:
            process.stdin.write(text.encode())
            process.stdin.close()
        except OSError:
            pass  # it has ended: its own words tell why
    ended.join(timeout)
    if ended.is_alive():
        state = (read("/proc/%d/stat" % process.pid) or "").rpartition(") ")[2][:1]
        kill_group(process)
        # A process in uninterruptible sleep does not even die of KILL: do not wait for it for ever.
        ended.join(1)
        return {"timed_out": True, "state": state, "code": None, "out": "", "err": ""}
    for reader in readers:
        reader.join(1)  # what it has left running may hold the pipes open for ever
    texts = {name: b"".join(pieces).decode("utf-8", "replace") for name, pieces in parts.items()}
    return dict(texts, code=process.returncode)


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass


def keep(stream, pieces):
    """Read to the end, and keep no more than MOST bytes: a tool that runs wild must not take the node's memory."""
    size = 0
    while True:
        piece = stream.read1(1 << 16)
        if not piece:
            break
        size += len(piece)
        if size <= MOST:
            pieces.append(piece)


def tool(name, arguments, timeout):
    """What the tool gave, or {"missing": True}."""
    path = find(name)
    return {"missing": True} if path is None else run([path] + arguments, timeout)


def json_of(result):
    """The JSON a tool printed, or None."""
    try:
        return json.loads(result.get("out") or "null")
    except ValueError:
        return None


def read(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, ValueError):
        return None


def endpoint(text):
    """`0100007F:1F90` of /proc/net/tcp as address and port: words in the machine's own byte order."""
    import socket  # few programs need them, and every node pays for them
    import struct

    words, _, port = text.partition(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        packed = packed[12:]  # IPv4 through a socket for both
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed), int(port, 16)


def account(uid):
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError, TypeError):
        return None


def command(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return " ".join(file.read().replace(b"\0", b" ").decode("utf-8", "replace").split())[:200]
    except OSError:
        return None


def run_of(pid):
    """The run that a process belongs to."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(b"RUNBOOK_RUN_ID="):
                    return entry.partition(b"=")[2].decode()
    except OSError:
        pass
    return None
