"""The program that runs on a node which the server cannot reach: it dials the server, and carries byte streams to
supervisors.

It knows nothing of checks, launches or jobs beyond counting them: what is run comes through the stream, as over SSH.
"""
