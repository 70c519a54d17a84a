"""Commands: parse arguments, wire the rooms together, turn errors into text and an exit code, once."""
