"""Who came, under which number, and how large the world is: the store, torchrun's rendezvous, JAX's coordinator."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

RULES = (
    Rule(
        "ranks-missing",
        "some ranks never came: {came} of {wanted} joined",
        (
            Sign(
                "too-few-joined",
                "clients joined|workers joined|processes joined|hosts joined|waiting for clients"
                "|processes connected|nodes joined",
                r"(?<!\d)(?P<came>\d+)/(?P<wanted>\d+) (?:clients|workers|processes|nodes"
                r"|hosts)(?: have)? (?:joined|connected)",
            ),
            "barrier-too-few",
        ),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "ranks-missing",
        "the rendezvous ran out of time: not every machine came to it",
        (
            Sign(
                "rendezvous-timeout",
                "rendezvoustimeouterror|rendezvous timeout|the rendezvous has failed to complete|timed out waiting for",
            ),
            Sign(
                "socket-timeout",
                "socket timeout|wait timeout|timeout after|storetimeout|waiting for key|timed out waiting"
                "|timed out initializing|barrier timed out|timed out task",
                r"^(?!.*(?:ncclUniqueId|store->get|all_gather|http))(?:.*(?:Error|error|Exception): .*Socket Timeout"
                r"|.*wait timeout after \d+ ?ms, keys: |.*Timed out initializing process group|.*Timed out after "
                r"\d+ ?\w+ waiting for|.*Barrier timed out(?!\. Id: Shutdown)|.*Timeout waiting for key"
                r"|.*Timed out task names)",
            ),
            Sign(
                "coordinator-timeout",
                "deadline_exceeded|deadline exceeded|registertask",
                r"DEADLINE_EXCEEDED(?!.*(?:UNAVAILABLE|unreachable|Id: Shutdown))",
            ),
            Sign(
                "never-scheduled",
                "not enough slots|batch job submission failed|unable to create step"
                "|unable to allocate resources|not been scheduled|placement group",
                r"not enough slots available|Batch job submission failed|Unable to create step for job"
                r"|Unable to allocate resources|placement group.*(?:not been scheduled|for \d+ seconds"
                r"|cannot be|can't be|timed out|infeasible)",
            ),
            Sign(
                "horovod-missing",
                "horovodrun|missing ranks|of the processes|for tasks to start|tasks registered",
                r"Timed out waiting for (?:horovodrun|tasks to start)"
                r"|of \d+ (?:processes|tasks) (?:registered|started)",
            ),
        ),
        unless=("gloo-mesh-failed",),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "ranks-missing",
        "the cluster has fewer GPUs than the job asks for: nodes of it never joined, or others hold them",
        (Sign("cluster-too-small", "required gpus exceeds", r"number of required GPUs exceeds"),),
        confidence="medium",
        way="ray",
    ),
    Rule(
        "ranks-missing",
        "it hangs where the ranks meet, and nothing here says that the others came",
        ("hangs",),
        needs=("tells-world",),
        unless=("nccl-or-cuda", "joined"),
        tier=Tier.ABORT,
        confidence="low",
    ),
    Rule(
        "world-size-mismatch",
        "rank {task} registered where fewer ranks are expected: the machines were told different sizes",
        (
            Sign(
                "unexpected-task",
                "unexpected task registered",
                r"Unexpected task registered with (?:task(?:_id)?=|.*task:)(?P<task>\d+)",
            ),
            Sign(
                "sizes-differ",
                "mismatch in rank|does not match|sizeof(impl_)|bytes.size()|world size mismatch"
                "|world_size mismatch|different world size|num_processes",
                r"mismatch in rank count from procs|(?:devices|num_nodes|world size)\b.{0,80}(?:ntasks"
                r"|SLURM).{0,60}does not match|sizeof\(impl_\) ==|bytes\.size\(\)\. \d+ vs \d+|world[_ ]size "
                r"(?:mismatch|.{0,30}differ)|(?:num_processes|world.size)\b.{0,40}(?:mismatch|does not match|differs)",
            ),
            "told-different-sizes",
        ),
        tier=Tier.FAULT,
    ),
    Rule(
        "duplicate-rank",
        "rank {rank} is claimed twice",
        (
            Sign(
                "rank-outside",
                "already checked in|invalid rank requested|rank < size|rank should be|invalid rank"
                "|rank is out of|already_exists|already exists|different incarnation|duplicate task"
                "|rank already|already registered|already connected",
                r"rank < size\. \d+ vs \d+|rank (?P<rank2>\d+) of \d+ ranks has already checked in"
                r"|Invalid rank requested : (?P<rank3>\d+)/\d+|already connected|ALREADY_EXISTS|different incarnation"
                r"|duplicate task|(?:rank|task) \S+ (?:is )?already (?:registered|connected|exists)"
                r"|Invalid rank \d+, rank should be",
            ),
            "rank-twice",
        ),
        tier=Tier.FAULT,
    ),
    Rule(
        "rdzv-id-mismatch",
        "the nodes used different rendezvous ids, so each waits in a room of its own",
        ("ids-differ",),
        needs=("never-met",),
        confidence="medium",
        tier=Tier.NETWORK,
    ),
    Rule(
        "rdzv-host-not-matched",
        "no torchrun recognised {host} as its own address, so nobody opened the store and every node waits as a client",
        ("every-node-a-client",),
        tier=Tier.NETWORK,
        confidence="medium",
        unless=("drops", "no-route", "refused", "lookup-failed", "lookup-of-nonsense"),
    ),
    Rule(
        "master-not-listening",
        "torchrun could not open the store at {host}: no agent there yet, another machine's address, or an "
        "agent that does not know its own address by that name",
        ("rendezvous-connection",),
        unless=(
            "client-timed-out",
            "every-node-a-client",
            "store-gone",
            "refused",
            "drops",
            "no-route",
            "lookup-failed",
            "lookup-of-nonsense",
            "store-reset-at-once",
            "joined",
            "port-is-no-port",
            "bind-in-use",
            "cannot-assign",
            "dials-loopback",
            "told-loopback",
        ),
        tier=Tier.SYMPTOM,
        confidence="low",
        way="is-host",
    ),
    Rule(
        "rdzv-flags-wrong",
        "the launcher's flags contradict each other",
        (
            Sign(
                "flags-contradict",
                "standalone|conflict|mutually exclusive|cannot be used with|not allowed with",
                r"--standalone\b.*--nnodes[= ](?!1\b|1:1)\d|--nnodes[= ](?!1\b|1:1)\d\S* .*--standalone\b"
                r"|--(?:rdzv|nnodes|standalone|master)\S* (?:conflicts|cannot be used|is not allowed)"
                r"|argument --(?:rdzv|nnodes|standalone|master|nproc)\S*: not allowed with",
            ),
        ),
        needs=("failed",),
    ),
    Rule(
        "rdzv-flags-wrong",
        "c10d rendezvous ignores --master_addr, and no --rdzv_endpoint was given: every node waits for itself",
        (Sign("master-addr-ignored", "master_addr is only used for static"),),
        needs=("never-met",),
        unless=("told-endpoint",),
        confidence="medium",
        tier=Tier.NETWORK,
    ),
    Rule(
        "rdzv-flags-wrong",
        "the launch line names several nodes, c10d and --master_addr, which c10d ignores, and no "
        "--rdzv_endpoint: every node waits for itself",
        (
            Sign(
                "launched-without-endpoint",
                "rdzv_backend|rdzv-backend",
                r"^(?!.*rdzv[-_]endpoint)(?=.*--rdzv[-_]backend[= ]c10d\b)(?=.*--nnodes[= ](?!1(?!:)\b"
                r"|1:1\b)\S)(?:.*--master[-_]addr[= ])",
            ),
        ),
        needs=("failed",),
        unless=("joined",),
        confidence="medium",
        tier=Tier.NETWORK,
    ),
    Rule(
        "rdzv-flags-wrong",
        "no --rdzv_endpoint was given for several nodes: each takes itself for the meeting place",
        (Sign("endpoint-empty", "rdzv_endpoint", r"rdzv_endpoint\s*:\s*$"),),
        needs=("many-nodes", "never-met"),
        confidence="medium",
        tier=Tier.NETWORK,
    ),
    Rule(
        "rdzv-closed",
        "the rendezvous was closed: an agent left it, or an old run with the same id did",
        (
            Sign(
                "rendezvous-closed",
                "rendezvousclosederror|rendezvous is closed|rendezvous closed|rendezvous has been closed"
                "|rendezvousgracefulexit|rendezvous has already been closed",
            ),
        ),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "store-host-exited",
        "the process that hosts the store (rank 0, or node 0's agent) is gone: its log has the cause",
        (
            Sign(
                "store-gone",
                "failed to shutdown|store->|grpc_message|send rpc|unavailable: |the gcs|gcs server"
                "|raylet was terminated|gcs is not|leader|shut down too early|should dump|dump flag|dump signal"
                "|sendbytes|broken pipe|recv, got|heartbeat|keep-alive|num_nodes_waiting|socket closed|recvvalue"
                "|connection was likely closed|coordination service|coordinator",
                r"(?:RuntimeError|DistNetworkError): Broken pipe|raised from sendBytes|UNAVAILABLE: recvmsg"
                r"|GCS (?:server )?(?:died|is not available|has died|is down)|raylet was terminated because"
                r"|(?:lost|Lost) connection to (?:the )?GCS|TCPStore.*(?:shut down too early|Broken pipe"
                r"|Connection reset)|should dump.*flag|Failed to \w+\b.{0,30}\bdump (?:flag|signal)\b.{0,40}store"
                r"|sendBytes failed|sendBytes.*Broken pipe|got 0 bytes.*(?:remote server|closed)"
                r"|Failed to recv, got 0 bytes|remote server shutdown or crash|\bnum_nodes_waiting\b"
                r"|keep-alive heartbeat|failed to shutdown the rendezvous|failed to send a keep-alive"
                r"|store->(?:get|set|wait).*(?:Broken pipe|Connection reset|got 0 bytes)|c10d store.*(?:lost|gone)"
                r"|(?:Socket closed|Connection reset).*(?:PollForError|coordination)|(?:DistNetworkError"
                r"|DistStoreError): Broken pipe|Failed to send RPC to coordination service|(?:leader"
                r"|coordinator) task was preempted|grpc_message:.{0,3}(?:Socket closed|recvmsg:Connection reset"
                r"|Broken pipe)|leader (?:is )?(?:down|unreachable)|failed to send heartbeat|coordinator (?:has "
                r")?(?:died|exited|failed|is down)|UNAVAILABLE: (?:Socket closed|recvmsg:Connection reset"
                r"|Connection reset|Broken pipe|failed to connect.*(?:PollForError|Heartbeat))",
            ),
        ),
        unless=("store-reset-at-once",),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "torch-version-mismatch",
        "the store answered and hung up at once: different torch versions, or something else that listens on that port",
        (
            "store-reset-at-once",
            Sign(
                "store-protocol",
                "query type|validation magic|magic number",
                r"(?:unknown|unexpected|invalid)\b.{0,30}query type|validation magic|magic number",
            ),
        ),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "torch-version-mismatch",
        "the nodes run different versions of torch: {versions}",
        ("versions-differ",),
        needs=("failed",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "stale-store",
        "the store still holds keys of an earlier run",
        (
            Sign(
                "file-exists",
                "file already exists|already exists in the store|stale",
                r"File already exists|stale (?:store|file(?! handle)|rendezvous|lock)|init file.*already exists",
            ),
            "barrier-too-many",
        ),
        unless=("program-file-exists",),
    ),
)

SIGNS = (
    Sign(
        "coordinator-here",
        "distributed service|service listening|coordinationservice",
        r"Starting JAX distributed service|service listening on|Initializing CoordinationService",
    ),
    Sign("tasks-named", "task:|barrier timed out|task names", r"Barrier timed out|/task:\d+"),
    Sign(
        "tells-world",
        "world_size=|world-size=|nnodes",
        r"world[-_]size[=: ]+(?:[2-9]|\d{2,})|nnodes[= ]+(?:[2-9]|\d{2,})",
    ),
    Sign(
        "told-endpoint",
        "rdzv_endpoint|rdzv-endpoint",
        r"(?:--rdzv[-_]endpoint |rdzv[-_]endpoint['\"]?\s*[=:]\s*)['\"]?(?!(?:localhost|127\.)\S*)[\w.$-]+",
    ),
    Sign(
        "store-barrier",
        "worker_count|world_size=",
        r"(?:key: (?P<key>\S+) .*)?world_size=(?P<size>\d+), (?:worker_count|num_workers_joined)=(?P<count>\d+)",
    ),
    Sign(
        "barrier-completed",
        "store-based barrier",
        r"Completed store-based barrier for key:? ?(?P<key>\S+) with (?P<size>\d+) nodes",
    ),
    Sign("creates-store", "_create_tcp_store|connection to the cd store|create_backend", None),
    Sign("c-ten-d", "rdzv_backend", r"rdzv[-_]backend['\"]?[\s=:]+['\"]?c10d"),
    Sign("rendezvous-connection", "rendezvousconnectionerror|the connection to the c", None),
    Sign(
        "endpoint",
        "rdzv_endpoint|rdzv-endpoint|master_addr|master-addr",
        r"(?:rdzv[-_]endpoint|master[-_]addr)['\"]?[\s=:]+['\"]?(?P<host>[\w.-]+)(?::(?P<port>\d+))?",
    ),
    Sign(
        "runs-on",
        "run on |hostname|my address|listening on|inet ",
        r"run on (?P<host>[\w.-]+)|hostname[:=] ?(?P<host2>[\w.-]+)|inet (?P<host3>[\d.]+)",
    ),
    Sign(
        "resets-store",
        "connection reset by peer|connection was likely closed|invalid response",
        r"(?:recvValue|recvBytes|recvVector|TCPStore|DistNetworkError|RuntimeError|c10d).*(?:Connection reset by peer)",
    ),
    Sign(
        "connecting",
        "_create_c|tcpstore(|_create_tcp_store|compare_set|create_backend|static_tcp_rendezvous"
        "|_env_rendezvous_handler|_tcp_rendezvous_handler|validate",
        None,
    ),
    Sign(
        "torch-version",
        "torch version|pytorch version|torch=|torch |torch:",
        r"\b(?:py)?torch(?: version)?[ =:]+v?(?P<version>\d+\.\d+(?:\.\d+)?)\b",
    ),
    Sign(
        "global-rank",
        "global_rank:|node_rank|node-rank|initializing",
        r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/(?P<size>\d+)|node[-_]rank[= ](?P<node_rank>\d+)",
        keep=2000,
    ),
    Sign(
        "told-size",
        "nnodes|world_size|world-size|num_processes|num_nodes",
        r"--nnodes[= ](?P<nodes>\d+)(?!:)|\bWORLD_SIZE['\"]?[=: ]+['\"]?(?P<size>\d+)"
        r"|num_processes[=: ]+(?P<processes>\d+)",
        keep=200,
    ),
    Sign("run-id", "run_id|rdzv_id|rdzv-id", r"(?:run_id|rdzv[-_]id)['\"]?[\s=:]+['\"]?(?P<id>[\w.-]+)"),
    Sign(
        "waits-for-rank-key",
        "role_info|waiting for key|/rank|store->get|wait timeout",
        r"(?:keys?:? ?).*?(?P<key>role_info/\d+|/\d+)(?!\S)",
    ),
    Sign("program-file-exists", "fileexistserror", None),
)
