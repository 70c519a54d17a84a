"""The program of the chaos tests: numbered lines on both streams, and a record of its own of what it has written.

A write goes to the stream first and to the record after it, so that whatever the record has must be in the log as well,
however the program ended. Arguments: seconds to run, then ways to behave: flood, binary, unended, deaf, children, closes.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

seconds, ways = float(sys.argv[1]), set(sys.argv[2:])
here, rank = Path.home() / "record", os.environ["RANK"]
here.mkdir(exist_ok=True)
RECORDS = {
    1: os.open(f"{here}/{rank}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    2: os.open(f"{here}/{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
}


def write(stream: int, data: bytes) -> None:
    at = 0
    while at < len(data):
        count = os.write(stream, data[at : at + 65536])
        os.write(RECORDS[stream], data[at : at + count])
        at += count


if "deaf" in ways:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "children" in ways:
    sleeper = [sys.executable, "-c", "import time; time.sleep(300)"]
    subprocess.Popen(sleeper, start_new_session=True)
    subprocess.Popen(sleeper, env={}, preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
number, end = 0, time.monotonic() + seconds
while time.monotonic() < end:
    number += 1
    more = b" \xff\xfe\x00\x1b[2J" if "binary" in ways else b""
    more += b"x" * 150_000 if "flood" in ways and number % 50 == 0 else b""
    if 1 in RECORDS:
        write(1, b"%s out %d%s\n" % (rank.encode(), number, more))
    write(2, b"%s err %d%s\n" % (rank.encode(), number, more))
    if "closes" in ways and number == 20:
        os.close(1)
        os.close(RECORDS.pop(1))
    time.sleep(0.002 if "flood" in ways else 0.01)
if "unended" in ways:
    for stream in RECORDS:
        write(stream, b"the last line has no end")
