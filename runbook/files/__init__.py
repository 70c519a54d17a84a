"""Reads files into the model: YAML with positions, JSON Schema, nodes folded out of their levels. Every mistake in a
file becomes a `Problem` with its place."""
