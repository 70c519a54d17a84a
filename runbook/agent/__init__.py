"""The agent: a program on a node that the server cannot reach. It dials the server, and carries byte streams to
supervisors.

The agent knows nothing of checks and launches, and only reports jobs: what is run comes through the stream, as over
SSH.
"""
