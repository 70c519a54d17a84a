"""Causes: their catalogue, made from a page each, and findings that tell them. Pure."""
