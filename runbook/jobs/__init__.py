"""Jobs: the steps of a `launch` stage (prepare every node, start all ranks at once, watch them, end a failed attempt,
say why it failed, try again), and the commands that deal with a job later, perhaps from another machine: find it,
follow it, stop it, clean up after it."""
