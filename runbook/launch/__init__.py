"""What a launch puts on a node: ranks, their environment, the launcher's command, scripts for three shells. Pure."""
