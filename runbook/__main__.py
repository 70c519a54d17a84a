"""`python -m runbook` is the same tool as `runbook`."""

from runbook.cli.main import entry

if __name__ == "__main__":
    entry()
