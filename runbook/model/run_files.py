"""The files in which a run records itself, by their names in its folder."""

EVENTS_FILE = "events.jsonl"
"""One event a line, as it happens."""
RESULT_FILE = "result.json"
"""The verdict and every outcome, written when the run has ended."""

MAX_EVENT_LINE_BYTES = 24 << 20
"""The most bytes of one event that are read. The first one holds the plan: a quarter of a kilobyte a node."""
