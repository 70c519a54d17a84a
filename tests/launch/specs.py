"""Specs and texts for the tests of scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from runbook.launch.script import Script, ScriptProcess, ScriptSpec, make_script

FRAGMENTS = [
    *r"""' " '' "" \ \\ \" \\" ` `` $ $$ $(id) `id` ${HOME} $'x' $env:PATH % %% %PATH% %~dp0 %1 %* %%V ^ ^^ ^& ! !! !x! !PATH!
    & && | || < > >> 2>nul ; ;; # ~ ~/ * ? [a] {a,b} ( ) @( @{ --% - -- /? /c = , rem exit call echo a B 7 train.py
    C:\x\y\ \\host\share\ ‘ ’ ‚ ‛ “ ” „ – ﻿ é 漢 🚀""".split(),
    *(" ", "  ", "\t", "\n", "\r", "\r\n", "\0", "\x1a", "\x1b", "\x7f", "\x85", "\u00a0", "\u2028", "\ud800", "rem "),
]
TEXT = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=6)), min_size=1, max_size=5).map("".join)
"""Anything at all, with what shells find special far more often than chance would have it."""


def spec(**options: Any) -> ScriptSpec:
    """A spec for one rank of one node that runs `true`, with these options instead."""
    defaults: dict[str, Any] = {
        "node": "node-a",
        "name": "launch",
        "made_from": ("playbooks/train.yml", "inventories/two.yml"),
        "world_size": 1,
        "environment": {},
        "processes": ranks(1),
        "command": ("true",),
    }
    made = {**defaults, **options}
    return ScriptSpec(**{"ranks": len(made["processes"]), **made})


def ranks(count: int, first: int = 0) -> tuple[ScriptProcess, ...]:
    return tuple(ScriptProcess(n, {"RANK": str(first + n), "LOCAL_RANK": str(n)}) for n in range(count))


def put(folder: Path, script: Script) -> Path:
    """The script, written to the folder with all that belongs to it."""
    for name, data in script.files.items():
        (folder / name).write_bytes(data)
    return folder / script.name


def written(folder: Path, shell: str, **options: Any) -> Path:
    return put(folder, make_script(spec(**options), shell))
