"""A node that lies: our own supervisor, whose answers somebody changes before they are sent."""

from __future__ import annotations

import sys
from pathlib import Path

INTERPRETER = """#!{python}
import sys, zlib
sys.argv[1:] = []  # the options that a Python would have taken itself
count = int(sys.stdin.buffer.readline().partition(b"#")[2])
source = zlib.decompress(sys.stdin.buffer.read(count)).decode()
space = {{"__name__": "supervisor"}}
exec(compile(source, "supervisor", "exec"), space)
lies = {{}}
exec(compile(open({lies!r}).read(), "lies", "exec"), lies)
send = space["Pipe"].send
def lie(self, frame, payload=b""):
    frame, payload = lies["lie"](frame, payload)
    send(self, frame, payload)
space["Pipe"].send = lie
space["main"]()
"""


def liar(folder: Path, body: str) -> Path:
    """An interpreter for `python:` of a local node. `body` is what `lie` does with `answer`, which a program of ours gave;
    `jobs` are those of this node in it."""
    lies = folder / "lies.py"
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    lies.write_text(
        "import os\n"
        "def lie(frame, payload):\n"
        "    answer = frame.get('answer')\n"
        "    if isinstance(answer, dict):\n"
        "        name = os.environ['RUNBOOK_NODE']\n"
        "        jobs = [one for one in answer.get('jobs') or [] if one['about']['node'] == name]\n"
        f"{lines}\n"
        "    return frame, payload\n"
    )
    path = folder / "python"
    path.write_text(INTERPRETER.format(python=sys.executable, lies=str(lies)))
    path.chmod(0o755)
    return path
