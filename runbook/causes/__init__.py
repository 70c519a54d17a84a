"""Causes: their catalogue, and what explains them. Pure."""
