"""Is the interpreter that the inventory names there, and new enough?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.model.inventory import Node
from runbook.model.verdict import Finding
from runbook.transport import bootstrap


def python_finding(node: Node, hello: Mapping[str, Any]) -> Finding | None:
    """Whether the supervisor had to do without the interpreter that the inventory names, and why.

    With an `activate` line the name may only mean something behind it: then the ranks find out.
    """
    rejected = list(hello.get("rejected") or ())
    if node.activate or not rejected:
        return None
    name, code = node.interpreter, int(rejected[0])
    if code == bootstrap.TOO_OLD:
        return Finding(
            "python-too-old",
            f"{name} on {node.place} is older than Python 3.8",
            f"name a newer one in the inventory: `python:` of {node.name} (this one is there: {hello['executable']})",
            (f"`{name} --version` on {node.place}; {hello['executable']} is {hello['python']}",),
        )
    why = "is not there" if code == bootstrap.MISSING else f"does not start (exit code {code})"
    return Finding(
        "python-missing",
        f"{name} {why} on {node.place}",
        f"install it, or name the right one in the inventory: `python:` of {node.name} (this one is there: "
        f"{hello['executable']})",
        (f"`{name} --version` on {node.place}; {hello['executable']} is {hello['python']}",),
    )
