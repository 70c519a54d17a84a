"""Ranks that died, failed or make no progress: what can be seen of them, and what it means."""
