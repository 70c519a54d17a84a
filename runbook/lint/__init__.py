"""Lint: mistakes in inventories and playbooks, and what will fail later; found without reaching any node."""
