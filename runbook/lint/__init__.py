"""Lint: what is wrong, or will be, in inventories and playbooks; told without reaching any node."""
