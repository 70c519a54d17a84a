"""Runs: the folders in `DATA/runs`, whoever made them; starting, following, stopping and searching them."""
