"""From logs to causes: a scan finds signs on lines, rules make causes of signs, and a judge names the root cause.
Pure."""
