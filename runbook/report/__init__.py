"""Makes reports: every report is a reader of the engine's one stream of events, live or from `events.jsonl`."""
