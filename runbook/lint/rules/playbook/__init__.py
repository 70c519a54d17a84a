"""Rules about playbooks: their stages, one by one and planned, and their variables."""
