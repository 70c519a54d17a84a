"""Dials between nodes that several checks make, and what stops the failed ones: rules, routes, addresses, ports."""
