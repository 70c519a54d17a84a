"""`links` in simulated networks: how many searches find the slow one and accuse nobody else, in how many rounds, and what
they cost the controller."""

from __future__ import annotations

import random
import statistics
import time

from checks.test_links_search import CASES, told

TRIALS = {16: 100, 64: 40, 256: 15, 1024: 3}
NAMES = ("sound", "one of 0.8 sends", "5% of 0.5 sends and receives", "link of 0.5", "leaf of 0.5 uplinks")


def links() -> list[str]:
    lines = [
        "links, simulated: noise 3 %, 0.2 % transients; found and falsely accused of so many searches, median rounds, CPU"
    ]
    for name in NAMES:
        case, least = CASES[name]
        for count, trials in TRIALS.items():
            if count < least:
                continue
            found = false = 0
            rounds, spent = [], []
            for seed in range(trials):
                network, wanted = case(count, random.Random(seed))
                begun = time.process_time()
                names, number = told(network, seed)
                spent.append(time.process_time() - begun)
                rounds.append(number)
                found += wanted <= names
                false += not names <= wanted
            middle, cost = statistics.median(rounds), statistics.median(spent)
            lines.append(
                f"  {name:<30} {count:>5} nodes: {found}/{trials} found, {false} false, {middle:g} rounds, {cost * 1000:.0f} ms"
            )
    return lines
