"""reach: the check, and what it demands of a node before anything starts there: login, interfaces, GPUs, torch."""
