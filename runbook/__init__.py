"""runbook brings up multi-node GPU jobs: ordered checks over SSH, and the cause of the first one that fails."""

__version__ = "0.1.0"
