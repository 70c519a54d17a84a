"""Events in, bytes out: every report is a reader of the engine's one stream, live or from `events.jsonl`."""
