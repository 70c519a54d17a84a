"""How to reach a node: the transports, each of which gives a byte stream to a supervisor, and the sessions over them.

A stream is a process on this machine, or goes over SSH, Slurm, Kubernetes or an agent; from the node it may go on into
a container.
"""
