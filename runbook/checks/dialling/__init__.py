"""TCP between nodes: listeners and dials on all pairs, the rules of both ends, and whose doing it is that some fail."""
