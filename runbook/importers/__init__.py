"""Inventories from elsewhere: files of Ansible, MPI and Slurm, a Slurm job, pods, and hosts that are asked.

Reading a file runs nothing and asks no server: no script, no template, no name server.
"""
