"""How to reach a node: a byte stream with a supervisor at the far end, and the sessions over it.

The stream is a process here, or goes over SSH, Slurm, Kubernetes or an agent, and from there into a container.
"""
