"""ping: the check, and one module for each question that it answers: names, addresses, routes, packet sizes and
loss."""
