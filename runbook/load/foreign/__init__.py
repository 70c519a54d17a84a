"""Other people's inventories: hostfiles of DeepSpeed and MPI, Ansible's, Slurm's host lists. Text in, a draft of ours out.

Nothing here runs anything or asks anybody: not a script, not a template, not a name server.
"""
