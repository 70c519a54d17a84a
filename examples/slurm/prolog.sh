#!/bin/sh
# slurm.conf: Prolog=/etc/runbook/prolog.sh, PrologFlags=Alloc. Runs as root, without PATH, on every node that a job gets
# (without that flag only where the job starts a step).
# Exit 1 drains the node; since Slurm 22 the job is then requeued held: `scontrol release JOBID`, or an administrator does.
# Only a node that was proven bad (1) is worth that: not a mistake in our own files (2), not what is unknown (3).
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
runbook run /etc/runbook/node.yml -i /etc/runbook/here.yml --run-dir "/var/log/runbook/$SLURM_JOB_ID" >/dev/null 2>&1
[ $? != 1 ]
