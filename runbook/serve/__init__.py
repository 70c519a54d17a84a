"""`runbook serve`: the page and the JSON API of a cluster. Everything that they do, a file and the command line do
too."""
