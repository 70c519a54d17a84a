"""Causes: their catalogue, made from a page for each, and findings that name them. Pure."""
