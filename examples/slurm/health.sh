#!/bin/sh
# slurm.conf: HealthCheckProgram=/etc/runbook/health.sh, HealthCheckInterval=300, HealthCheckNodeState=IDLE.
# Runs as root, without PATH, for 60 s at most. What is proven bad is drained with its cause as the reason; never more than
# --drain-at-most percent of the cluster, so a mistake of ours takes no cluster down. The node's name in here.yml is Slurm's.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
exec runbook run /etc/runbook/node.yml -i /etc/runbook/here.yml --run-dir /var/log/runbook/health \
  --drain --drain-at-most "${AT_MOST:-10}" >/var/log/runbook-health.log 2>&1
