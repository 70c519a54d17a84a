"""The nodes: of every group, and of every agent, with their ranks."""
