"""Files in, model out: YAML with positions, JSON Schema, folding. Every mistake becomes a `Problem` with its place."""
