"""Names, addresses, paths and TCP between nodes: what several checks ask of them, and whose doing it is that something
fails."""
