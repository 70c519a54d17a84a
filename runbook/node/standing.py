"""Where the ranks of this node stand, looked at again and again: who waits for others does so most of the time.

Argument: {"leaders": {rank: pid of the first process of its session}, "looks": int, "every_s": seconds between them, "stacks": the
folder where its processes write theirs when asked (stack_on_signal.py), or null: then nobody is asked}. Gives
{"ranks": {rank: {"pid", "states": a letter a look, as proc(5) has them, "stacks": [text of its main thread, a look]}},
"busy": as halt.py tells it}.
"""

import threading
import time

from halt import busy, family, own_rank, own_stacks, processes, tell_cpu

SHELLS = ("sh", "bash", "dash")
LONGEST = 8192


def look(arguments):
    leaders = [int(pid) for pid in arguments["leaders"].values() if pid]
    before, begun = processes(set(leaders)), time.monotonic()
    chosen = {}
    for leader in leaders:
        for entry in family(before, leader):
            rank = own_rank(entry["pid"])
            if rank is not None and entry["comm"] not in SHELLS:
                chosen.setdefault(rank, entry["pid"])  # those that come later are its data loaders
    found = {rank: {"pid": pid, "states": "", "stacks": []} for rank, pid in chosen.items()}
    for number in range(arguments["looks"]):
        threading.Event().wait(max(0.0, begun + number * arguments["every_s"] - time.monotonic()))
        states = {rank: state(pid) for rank, pid in chosen.items()}
        asked = [{"pid": pid, "state": states[rank]} for rank, pid in chosen.items()]
        said = own_stacks(arguments["stacks"], asked) if arguments.get("stacks") else {}
        for rank, pid in chosen.items():
            found[rank]["states"] += states[rank]
            found[rank]["stacks"].append(current(said.get(str(pid), "")))
    after = processes(set(leaders))
    tell_cpu(before, after, time.monotonic() - begun)
    return {"ranks": {str(rank): told for rank, told in found.items()}, "busy": busy(after, leaders)}


def state(pid):
    """That of its main thread; X where it has gone."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def current(text):
    """Of a dump of all threads the one that was asked."""
    at = text.rfind("Current thread ")
    return text[at:].partition("\n\n")[0][:LONGEST] if at >= 0 else ""
