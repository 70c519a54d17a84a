"""Processes that die, are ended, or are late; what the launchers print about it."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

RULES = (
    Rule(
        "rank-killed",
        "{who} was killed (SIGKILL), most often because the machine or the job's memory limit ran out",
        (
            Sign(
                "killed",
                "killed|exitcode|sigkill|signal|oom|out of memory|outofmemoryerror|status|return code"
                "|exit code|exited|memory limit|memory usage limit|memlimit|low on memory",
                r"status=9/KILL|systemd-oomd\S*: Killed|Killed \(signal 9\)|ray\S*OutOfMemoryError"
                r"|(?:killed|terminated)\b.*(?:running )?low on memory|exitcode\s*(?:: +|(?<= ))(?:-9|137)\b"
                r"|\bSIGKILL\b|(?:exited|terminated) (?:on|with|by) signal 9\b|signal: ?(?:9\b|Killed)"
                r"|killed by signal:? (?:Killed|9\b)|\bKilled \(signal 9\)|Out of memory: Kill|Memory cgroup out of "
                r"memory|oom[-_]kill|OOM[ -]?Killed|oom-killer|(?:exit(?:ed)?(?: with)?(?: code| status)?|return code"
                r"|status)[ =:(]+(?:-9|137)\b|task (?P<rank>\d+): (?:Killed|Out Of Memory)|: line \d+: +\d+ Killed"
                r"|^\W{0,4}Killed\W{0,4}$|^\d* *Killed +(?!by\b)\S|Exceeded (?:job|step) memory limit"
                r"|killed due to memory|TERM_MEMLIMIT|exceeded limit.{0,20}\bmem\b|Container killed by YARN for "
                r"exceeding|beyond (?:physical|virtual) memory limits",
            ),
        ),
        tier=Tier.DEATH,
        unless=("killed-by-agent",),
        way="logs",
    ),
    Rule(
        "rank-crashed",
        "{who} crashed by a signal of its own",
        (
            Sign(
                "crashed",
                "xc|exitcode|segmentation fault|bus error|sigsegv|sigbus|sigill|sigfpe|signal|illegal instruction"
                "|floating point exception|core dumped|exit code|return code|status|access violation|segfault",
                r"status=(?:11/SEGV|7/BUS|4/ILL|8/FPE)|fatal exception: access violation|exitcode\s*(?:: +"
                r"|(?<= ))(?:-11|-7|-4|-8|139|135|132|136|3221225477|3221226505|-1073741819)\b|0xC0000005"
                r"|segmentation fault|\bSIG(?:SEGV|BUS|ILL|FPE)\b|signal (?:11|7|4|8)\b|(?:exit ?code|return code"
                r"|status)[ =:]+(?:139|135|132|136|-11|-7|-4|-8|3221225477|3221226505|-1073741819)\b|\bbus error\b"
                r"|illegal instruction(?! parameter)|segfault at",
            ),
        ),
        tier=Tier.DEATH,
    ),
    Rule(
        "rank-crashed",
        "{who} aborted itself (SIGABRT)",
        (
            Sign(
                "aborted",
                "exitcode|sigabrt|aborted|signal|terminate called|check failed|exit code|return code|status"
                "|assertion|double free|free()|munmap_chunk|malloc|corrupted ",
                r"status=6/ABRT|corrupted (?:size vs|double-linked|unsorted)|exitcode\s*(?:: +|(?<= ))(?:-6|134)\b"
                r"|\bSIGABRT\b|signal 6\b|(?:exit code|return code|status)[ =:]+(?:134|-6)\b|Aborted \(core|^Aborted$"
                r"|Signal: Aborted|\] Check failed: |terminate called|double free|munmap_chunk|malloc\(\)"
                r"|free\(\): invalid|: Assertion .* failed",
            ),
        ),
        tier=Tier.ABORT,
        confidence="medium",
    ),
    Rule(
        "terminal-closed",
        "the launcher was hung up (SIGHUP): the terminal or SSH session it ran in was closed",
        (
            Sign(
                "hung-up",
                "death signal|got signal|sighup|hangup|hung up",
                r"closing signal SIGHUP|^(?:\[\d+\][+-]? +)?Hangup\b|Received (?:1|Signals\.SIGHUP"
                r"|SIGHUP) death signal|got signal: (?:1|Signals\.SIGHUP|SIGHUP)\b|terminated by signal 1\b|^Hangup$"
                r"|signal 1 \(Hangup\)|exited on signal 1\b",
            ),
        ),
        tier=Tier.NETWORK,
    ),
    Rule(
        "terminated-from-outside",
        "the job was told to end from outside: time limit, preemption, cancellation, eviction",
        (
            Sign(
                "cancelled",
                "cancelled at|due to |preempt|evicted|scancel|terminationgrace|time limit|run time limit"
                "|walltime|deadlineexceeded|active longer than|interruption notice|being terminated"
                "|killing job|forwarding signal|low on resource|job termination|revoked",
                r"^\s*Reason:\s+Preempted|walltime \S+ exceeded|job killed: walltime|TERM_(?:RUNLIMIT|OWNER|PREEMPT"
                r"|ADMIN)|reaching LSF run time limit|DeadlineExceeded\b(?!.*(?:rpc|grpc|StatusCode|StatusCode))"
                r"|active longer than specified deadline|mpi(?:run|exec):? (?:killing job|Forwarding signal (?!20\b))"
                r"|node was low on resource|scancel: Terminating job|srun: forcing job termination"
                r"|DUE (?:TO|to) (?:TIME LIMIT|PREEMPTION|NODE FAILURE|JOB|REQUEUE|SIGNAL)|\b(?:job|node|instance|pod"
                r"|worker|step|VM)\b.{0,30}\b(?:was|has been|is being|being|got)? ?preempted\b(?!/)|\bEvicted\b"
                r"|exceeded time limit|being preempted|interruption notice",
            ),
            "cancelled-plainly",
        ),
        tier=Tier.SYMPTOM,
        unless=("crashed",),
    ),
    Rule(
        "terminated-from-outside",
        "the job was told to end (SIGTERM): time limit, preemption, cancellation, eviction, or a launcher "
        "that cleaned up",
        (
            Sign(
                "ended-by-term",
                "exit code|exitcode|return code|exit status|exited with",
                r"\b(?:exit ?code|return code|exit status"
                r"|exited with(?: exit)?(?: code| status)?)\W{1,5}(?:143|-15)\b(?! \(pid: \d+\) of binary)",
            ),
            Sign(
                "told-to-end",
                "death signal|got signal|sigterm|preempt|requeue|requeing",
                r"Received (?:15|2|3|(?:Signals\.)?SIG(?:TERM|INT|QUIT)) death signal"
                r"|SignalException: .*got signal: (?:15|2|Signals\.SIG(?:TERM|INT))\b|Received SIGTERM"
                r"|caught SIGTERM|got SIGTERM|auto-?requeue signal|requeue?ing job \d",
            ),
        ),
        tier=Tier.SYMPTOM,
        unless=("crashed",),
        confidence="medium",
    ),
    Rule(
        "terminated-from-outside",
        "the job was interrupted at the keyboard (Ctrl-C)",
        (
            Sign(
                "interrupted",
                "keyboardinterrupt|caught ctrl-c|sigint|interrupted by user",
                r"^(?:\^C)?KeyboardInterrupt|caught ctrl-c|forwarding SIGINT|closing signal SIGINT"
                r"|sending Ctrl-C to job|received SIGINT",
            ),
        ),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "peer-died",
        "{peer} went away; this is what the survivors saw: read the log of the rank that went",
        (
            Sign(
                "peer-closed",
                "horovod has been shut down|lame workers|commclosederror|collective ops is aborted|closed by peer"
                "|connection failure|closed by remote|reset by peer|unhealthy|remote process exited"
                "|closed by localrank|ncclremoteerror|connection closed|read error|stopped sending heartbeats"
                "|lost communication|marked dead|raylet is terminated|actor died|worker died|has died"
                "|died unexpectedly|actordiederror|worker crashed|workercrashed|exited unexpectedly|proc died",
                r"(?:actor|worker|Worker proc\S*|raylet|process|engine core)\b.* died (?:unexpectedly|because)"
                r"|marked dead because|Raylet is terminated|worker died or was killed|worker process has died"
                r"|ActorDiedError|WorkerCrashedError|The actor died|The worker died|Horovod has been shut down"
                r"|ShutdownHook: lame workers found|CommClosedError|Collective ops is aborted by"
                r"|Connection closed by peer \[?(?P<peer>[^\]\s]+)|(?<!Service thread\] )Connection closed by "
                r"(?:remote peer|localRank)(?: (?P<peer2>\S+))?|(?:Read|Write) error \[?(?P<peer3>[^\]]+)\]?:\d+: "
                r"(?:Connection reset|Broken pipe)|(?:pair\.cc|\bMPID\w+\().*(?:reset by peer|closed by peer"
                r"|connection failure)|tasks are unhealthy|task .* (?:is )?unhealthy|remote process exited or there "
                r"was a network error|ncclRemoteError|stopped sending heartbeats|lost communication with",
            ),
            Sign("task-unhealthy", "heartbeat timeout|heartbeats"),
        ),
        unless=("gloo-mesh-failed", "reads-from-lost-peer"),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "peer-died",
        "a process left JAX while others still worked, and waited at the way out until the time was up: its "
        "own log says why it left",
        (
            Sign(
                "shutdown-barrier",
                "shutdown barrier|disconnect from coordination",
                r"Shutdown barrier (?:in coordination service )?has failed"
                r"|Failed to disconnect from coordination service",
            ),
        ),
        tier=Tier.SYMPTOM,
        confidence="medium",
        way="jax-barrier",
    ),
    Rule(
        "peer-died",
        "rank {rank} gave up its communicators first",
        (
            Sign(
                "aborted-comm",
                "ncclabortedcomm|communicator was aborted",
                r"NCCLABORTEDCOMM.*from rank: (?P<rank>\d+)|communicator was aborted on rank (?P<rank2>\d+)",
            ),
        ),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "peer-died",
        "the connection to another rank broke; read the log of the rank at the other end",
        ("peer-closed",),
        needs=("reads-from-lost-peer",),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "rank-behind",
        "{late} is late: the others wait for it",
        (
            Sign(
                "late-rank",
                "may be stuck|one or more tensors|arrived on time|monitoredbarrier|monitored_barrier"
                "|missing ranks|failed to pass|stalled|straggler|did not respond|not reached",
                r"Ranks? (?P<late>[\d, ]+) failed to pass monitoredBarrier|monitored_?barrier.*(?:rank"
                r"|Rank) (?P<late2>\d+)|missing ranks:|Stalled ops|One or more tensors were submitted to be reduced"
                r"|monitoredBarrier.*(?:timed? ?out|failed)|may be stuck\. Expected \d+ threads|not all of them "
                r"arrived on time",
            ),
            Sign(
                "waits-for-rank",
                "timed out waiting|store->get|timed out after|recv operation|read timeout|send operation"
                "|application timeout",
                r"Timed out waiting \d+ ?ms for (?:recv|send)|store->get.*(?:Socket Timeout|timed? ?out|wait timeout)"
                r"|(?:recv|send) operation to complete|Application timeout caused pair closure",
            ),
            "watchdog-behind",
        ),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
)

SIGNS = (
    Sign("step-cancelled", "cancelled at", None),
    Sign("task-exited", "srun: error", r"srun: error: .*task\S* \S+: (?:Exited|Killed|Segm|Abort|Bus|Out Of)"),
    Sign(
        "summary-exit",
        "exitcode",
        r"exitcode\s*(?:: +|(?<= ))(?P<code>-?\d+)(?!\d* \(pid: \d+\) of binary.*closing)",
        keep=400,
    ),
    Sign("summary-rank", "local_rank:", r"^\s*rank\s*:\s*(?P<rank>\d+) \(local_rank", keep=400),
    Sign("summary-host", "host ", r"^\s*host\s+:\s*(?P<host>\S+)", keep=400),
    Sign("summary-killed", "exitcode", r"exitcode\s*(?:: +|(?<= ))-9\b"),
    Sign(
        "killed-by-agent",
        "sigkill|closing signal",
        r"(?:Unable to shutdown process|closing signal SIGKILL|forcefully|Forcefully).*SIGKILL",
    ),
)
