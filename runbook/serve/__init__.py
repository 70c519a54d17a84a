"""`runbook serve`: the page and the JSON API of a cluster. Whatever they do can be done with files and the command line
too."""
