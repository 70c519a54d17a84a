"""Which Pythons does a node have in the usual places, and which of them have torch? No torch is imported, no file
written.
Argument, JSON: {"seconds": how long to look}. Says {"pythons": [{"path", "version", "torch", "cuda", "hip"}, ...],
"unfinished": how many candidates were not asked or did not answer in time}.
"""

from __future__ import annotations

import concurrent.futures
import glob
import json
import os
import re
import time

from runbook.node.tools import find_tool, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import PythonFacts, Pythons

MAX_PYTHONS = 60  # the most interpreters that are asked
PYTHON_TIMEOUT_S = 8  # seconds that each may take to answer

CONDA_FOLDERS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "conda", ".conda")
PYTHON_PATH_PATTERNS = (
    ["~/%s/bin/python" % name for name in CONDA_FOLDERS]
    + ["~/%s/envs/*/bin/python" % name for name in CONDA_FOLDERS]
    + ["/opt/%s/bin/python" % name for name in CONDA_FOLDERS]
    + ["/opt/%s/envs/*/bin/python" % name for name in CONDA_FOLDERS]
    + """
        /opt/*/bin/python /opt/*/*/bin/python /venv/bin/python /venv/*/bin/python /workspace/*/bin/python ~/*/bin/python
        ~/.*/bin/python ~/*/.venv/bin/python ~/*/venv/bin/python ~/.virtualenvs/*/bin/python
        ~/.local/share/virtualenvs/*/bin/python ~/.pyenv/versions/*/bin/python /usr/local/bin/python3* /usr/bin/python3*
    """.split()
)

VERSIONS_SCRIPT = """
import sys
sys.path[:] = [p for p in sys.path if p]
import importlib.util, json, os, re
said = {"version": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix, "torch": None}
spec = importlib.util.find_spec("torch")
for folder in list((spec and spec.submodule_search_locations) or []):
    try:
        text = open(os.path.join(folder, "version.py")).read()
    except OSError:
        continue
    for name, key in (("__version__", "torch"), ("cuda", "cuda"), ("hip", "hip")):
        match = re.search(r"^%s\\b[^=\\n]*= *['\\"]([^'\\"]+)" % name, text, re.M)
        said[key] = match.group(1) if match else None
print(json.dumps(said))
"""


def python_candidates() -> list[str]:
    paths = [path for path in (find_tool("python3"), find_tool("python")) if path]
    for place in PYTHON_PATH_PATTERNS:
        paths += sorted(glob.glob(os.path.expanduser(place)))
    found: list[str] = []
    for path in paths:
        # Other programs beside an interpreter begin with its name: python3-config, python3.11-gdb.
        fits = path not in found and re.match(r"python[0-9.]*$", os.path.basename(path))
        if fits and os.path.isfile(path) and os.access(path, os.X_OK):
            found.append(path)
    return found


def ask_interpreter(path: str) -> PythonFacts | None:
    """The facts that an interpreter prints about itself; None if its answer is not understood."""
    result = run([path, "-B", "-c", VERSIONS_SCRIPT], PYTHON_TIMEOUT_S)
    try:
        said: PythonFacts = json.loads((result.get("out") or "").strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    said["path"] = path
    return said if isinstance(said.get("version"), str) else None


def look(arguments: dict[str, Any]) -> Pythons:
    deadline = time.monotonic() + arguments["seconds"]
    paths = python_candidates()
    pool = concurrent.futures.ThreadPoolExecutor(6)
    asked = [pool.submit(ask_interpreter, path) for path in paths[:MAX_PYTHONS]]
    done, late = concurrent.futures.wait(asked, timeout=max(0.1, deadline - time.monotonic()))
    for future in late:
        future.cancel()
    pool.shutdown(wait=False)
    pythons, seen = [], set()
    for future in asked:
        said = future.result() if future in done else None
        if said and (said["prefix"], said["version"]) not in seen:  # /usr/bin/python3 may be /usr/bin/python3.11
            seen.add((said["prefix"], said["version"]))
            pythons.append(said)
    return {"pythons": pythons, "unfinished": len(late) + len(paths[MAX_PYTHONS:])}
