"""What the controller does grows like the number of nodes. Counted, not timed: calls of functions, in all its threads."""

from __future__ import annotations

import pytest
from bench.thousand import farmed

FEW, MANY = 50, 400
MOST = 1.15


@pytest.mark.thorough
def test_eight_times_the_nodes_are_eight_times_the_work() -> None:
    few, many = (farmed(nodes, ("port", "ibstat"), count_calls=True) for nodes in (FEW, MANY))
    assert few["calls"].keys() == many["calls"].keys() == {"reach", "port", "ibstat"}
    for stage, calls in few["calls"].items():
        assert calls > 100 * FEW, "too little to have looked at every node"
        assert many["calls"][stage] / MANY <= MOST * calls / FEW, stage
    assert many["threads"] <= MANY + 150, "one thread a node, besides those that ask them"
