"""ping: the check, and what it finds out about names, addresses, routes, sizes and loss, a question a module."""
