"""Outputs of tools: recognised, read, cut, and put beside logs."""
