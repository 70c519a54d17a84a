"""The files in which a run records itself, by their names in its folder, and how much of each is read at most: a folder
may be a stranger's."""

EVENTS_FILE = "events.jsonl"
"""One event a line, as it happens. The first holds the plan, a quarter of a kilobyte a node."""
RESULT_FILE = "result.json"
"""The verdict and every outcome, written when the run has ended."""

MAX_EVENT_LINE_BYTES = 32 << 20
MAX_EVENTS_BYTES = 256 << 20
MAX_RESULT_BYTES = 32 << 20
