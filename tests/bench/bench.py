"""`make bench`: how fast runbook is, as ratios against what people use today, measured side by side in one run.

A goal that is missed is printed as missed. The exit code is 0 unless something could not be measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    # Run as a program, this file's own folder comes first on the path and hides the package of the same name.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from bench.everything import PARTS, measure_all

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS), action="append", help="one part of it; may be repeated")
    parser.add_argument("--rounds", type=int, metavar="N", help="measure everything N times (default: each part's own)")
    parser.add_argument("--hosts", type=int, default=32, metavar="N", help="hosts of the fleet (default: 32)")
    parser.add_argument("--fault", metavar="TEXT", help="of the fault lab, only faults whose name holds TEXT")
    options = parser.parse_args()
    return measure_all(options.only or list(PARTS), rounds=options.rounds, hosts=options.hosts, fault=options.fault)


if __name__ == "__main__":
    sys.exit(main())
