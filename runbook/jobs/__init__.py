"""Jobs: what a `launch` stage does (prepare every node, start all at once, watch, end a failed attempt, say why, try
again), and what is done with a job later, perhaps from another machine: find it, follow it, stop it, clean up after
it."""
