"""`playbook.never-runs` is a claim about all clusters: held against random ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from profiles import examples

from runbook.files.templating import condition_holds
from runbook.model.errors import FilesWrong

from .write import ids

NUMBERS = st.sampled_from(["0", "1", "2", "3", "7", "8", "16", "100"])
COUNTS = st.sampled_from(["node_count", "world_size", "gpus"])
COMPARED = st.tuples(COUNTS, st.sampled_from(["<", ">", "==", "!=", "<=", ">="]), NUMBERS | COUNTS).map(" ".join)
MEMBER = st.tuples(COUNTS, st.sampled_from(["in [1, 2]", "in (4, 8)", "not in [1]"])).map(" ".join)
FABRIC = st.sampled_from(["infiniband", "not infiniband", "backend == 'nccl'", "backend != 'gloo'", "backend == 'mpi'"])
CONDITIONS = st.recursive(
    COMPARED | MEMBER | FABRIC,
    lambda inner: st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=4,
)


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, object]:
    nodes = draw(st.integers(1, 120))
    ranks = draw(st.integers(nodes, 2 * nodes + 20))
    return {
        "node_count": nodes,
        "world_size": ranks,
        "gpus": draw(st.integers(0, ranks)),
        "backend": draw(st.sampled_from(["nccl", "gloo"])),
        "infiniband": draw(st.booleans()),
    }


@examples(150)
@given(CONDITIONS, st.lists(clusters(), min_size=40, max_size=40))
def test_what_never_runs_runs_on_no_cluster(condition: str, some: list[dict[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "play.yml")
        path.write_text(f"stages:\n  - check: ping\n    when: >-\n      {condition}\n", encoding="utf-8")
        never = any(one.endswith("playbook.never-runs") for one in ids(path))
    try:
        runs = any(condition_holds(condition, cluster) for cluster in some)
    except FilesWrong:
        runs = False
    assert not (never and runs), condition
