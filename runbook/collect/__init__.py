"""One archive for a colleague or a forum: what to gather, asking the nodes, taking secrets and names out, writing
it."""
