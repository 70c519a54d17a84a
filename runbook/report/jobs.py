"""Jobs as a table for people, and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.model.fold import fold
from runbook.model.units import bytes_text, seconds_text
from runbook.model.visible import visible
from runbook.report.text import cells, one_line, pad

Row = Sequence[str]


def as_text(jobs: Sequence[Mapping[str, Any]], unreached: Mapping[str, str], *, ranks: bool) -> str:
    """`jobs` as `as_facts` gives them."""
    rows: list[Row] = [("JOB", "STAGE", "STATE", "ALIVE", "NODES", "STARTED", "CPU", "MEMORY", "GPU MEMORY", "STEP")]
    rows += [_row(job) for job in jobs]
    lines = _table(rows) if jobs else ["no job on these nodes"]
    for job in jobs if ranks else ():
        lines += [
            "",
            visible(f"{job['job']}, {job['attempt']}:"),
            *_table([RANK_HEAD, *(_rank(one) for one in job["ranks"])]),
        ]
    for job in jobs:
        if job["absent"]:
            lines.append(visible(f"{job['job']}: {fold(job['absent'])} of it tells nothing"))
        for node, damaged in job["damaged"].items():
            lines += [visible(f"{job['job']}: on {node} damaged: {one_line(file)}") for file in damaged]
    lines += [visible(f"{name} told nothing: {one_line(why)}") for name, why in unreached.items()]
    return "\n".join(lines) + "\n"


def as_json(jobs: Sequence[Mapping[str, Any]], unreached: Mapping[str, str]) -> str:
    return json.dumps({"version": 1, "jobs": list(jobs), "unreached": dict(unreached)}, indent=2) + "\n"


RANK_HEAD = ("  RANK", "NODE", "STATE", "EXIT", "PID", "RAN", "CPU", "MEMORY", "GPU MEMORY", "STEP")


def _row(job: Mapping[str, Any]) -> Row:
    alive = [one for one in job["ranks"] if one["alive"]]
    count = f"{sum(len(one['ranks']) for one in alive)}/{sum(len(one['ranks']) for one in job['ranks'])}"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(job["began"])) if job["began"] else "?"
    cpu = f"{sum(one['cpu'] for one in alive):.1f}" if alive else "-"
    memory = bytes_text(sum(one["rss"] for one in alive)) if alive else "-"
    gpu = [one["gpu_bytes"] for one in alive if one["gpu_bytes"] is not None]
    where = fold(job["nodes"])
    return (
        job["job"],
        job["stage"] or "?",
        job["state"],
        count,
        where,
        started,
        cpu,
        memory,
        bytes_text(sum(gpu)) if gpu else "-",
        _step(job["ranks"]),
    )


def _step(ranks: Sequence[Mapping[str, Any]]) -> str:
    """The highest step of these processes, steps a second since they were started, and how long ago it was told."""
    told = [one for one in ranks if one.get("step") is not None]
    if not told:
        return "-"
    one = max(told, key=lambda one: (one["step"], -one["step_age_s"]))
    speed = "" if one["steps_per_s"] is None else f", {one['steps_per_s']:.3g}/s"
    return f"{one['step']:,}{speed}, {seconds_text(one['step_age_s'])} ago"


def _rank(one: Mapping[str, Any]) -> Row:
    numbers = str(one["ranks"][0]) if len(one["ranks"]) == 1 else f"{one['ranks'][0]}-{one['ranks'][-1]}"
    code = "-" if one["code"] is None else str(one["code"])
    return (
        f"  {numbers}",
        one["node"],
        one["state"],
        code,
        str(one["pid"] or "-"),
        seconds_text(one["seconds"]) if one["seconds"] is not None else "-",
        f"{one['cpu']:.1f}" if one["alive"] else "-",
        bytes_text(one["rss"]) if one["alive"] else "-",
        bytes_text(one["gpu_bytes"]) if one["gpu_bytes"] is not None else "-",
        _step([one]),
    )


def _table(rows: Sequence[Row]) -> list[str]:
    rows = [[visible(text) for text in row] for row in rows]
    widths = [max(cells(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(pad(text, width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
