"""A run as one HTML file, made from its folder alone: nothing is fetched, and no script is needed to read it."""
