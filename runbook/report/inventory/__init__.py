"""Inventories for people and programs to look at: a table, a tree, and where a value comes from. Pure."""
