"""Ranks that died, broke or do not get on: what can be seen of them, and what it means."""
