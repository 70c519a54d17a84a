"""reach: the check, and what it wants of a node before anything starts there: login, interfaces, GPUs, torch."""
