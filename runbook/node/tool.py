"""What the node programs share: finding and running the node's tools, and saying one thing. Pushed beside them."""

import json
import os
import signal
import subprocess
import sys
import threading

MARK = "\x1erunbook "
TOOL_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/bin", "/bin")


def say(message):
    sys.stdout.write(MARK + json.dumps(message) + "\n")
    sys.stdout.flush()


def find(tool):
    """A tool on PATH, or where administrators' tools lie: an ordinary user's PATH has no sbin."""
    folders = os.environ.get("PATH", "").split(os.pathsep) + list(TOOL_FOLDERS)
    for folder in folders:
        path = os.path.join(folder, tool)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def run(argv, timeout):
    """Run a tool in a group of its own and kill the whole group at the deadline."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, LC_ALL="C"),
            start_new_session=True,
        )
    except OSError as error:
        return {"code": None, "out": "", "err": str(error)}
    said = []
    reader = threading.Thread(target=lambda: said.append(process.communicate()), daemon=True)
    reader.start()
    reader.join(timeout)
    if reader.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        # A process in uninterruptible sleep does not even die of KILL: do not wait for it for ever.
        reader.join(1)
        return {"timed_out": True, "code": None, "out": "", "err": ""}
    out, err = said[0]
    return {"code": process.returncode, "out": out.decode("utf-8", "replace"), "err": err.decode("utf-8", "replace")}


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
