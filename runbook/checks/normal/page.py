"""The table as text: lines of `allreduce.md`, which a test compares with these."""

from __future__ import annotations

from runbook.checks.normal.expect import table
from runbook.model.units import bytes_text, significant


def lines() -> list[str]:
    """One line a number, with its conditions, source and date."""
    data = table()
    listed = []
    for row in data["inside"]:
        low, high = row["busbw"]
        span = f"{significant(low)} GB/s or more" if high is None else f"{significant(low)} to {significant(high)} GB/s"
        algorithm = f", {row['algorithm'].upper()}" if row["algorithm"] else ""
        listed.append(
            f"- {row['gpus']} × {row['name']} in one node{algorithm}: {span} at {row['at']} ({row['source']}, {row['date']})"
        )
    for name, rule in (("NCCL between nodes", data["adapters"]), ("gloo between nodes", data["gloo"])):
        low, high = rule["of_line_rate"]
        of = (
            "of the adapters' line rate"
            if rule is data["adapters"]
            else f"of a link's rate, up to {rule['up_to_gbps']} Gbit/s"
        )
        listed.append(f"- {name}: {low:.0%} to {high:.0%} {of} ({rule['source']}, {rule['date']})")
    for row in data["adapters"]["measured"]:
        low, high = (significant(value) for value in row["busbw"])
        span = low if low == high else f"{low} to {high}"
        listed.append(f"- {row['what'].replace(' x ', ' × ')}: {span} GB/s ({row['source']}, {row['date']})")
    ramp = data["ramp"]
    listed.append(
        f"- half of it is reached at about {bytes_text(ramp['inside_half_bytes'])} inside a node, "
        f"{bytes_text(ramp['between_half_bytes'])} between two ({ramp['source']}, {ramp['date']})"
    )
    return listed
