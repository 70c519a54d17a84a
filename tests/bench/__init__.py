"""How fast runbook is, as ratios: measured side by side with torchrun, ansible-core and pyinfra."""
