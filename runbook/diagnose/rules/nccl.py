"""NCCL inside a machine, and its collectives."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

MEASURED = r"\d[\d.]*\s+\d+\.\d\d\s+\d+\.\d\d"
"""Time, algbw and busbw of a row of nccl-tests."""

RULES = (
    Rule(
        "p2p-not-supported",
        "the GPUs cannot reach each other's memory, and NCCL tried to",
        (
            Sign(
                "no-peer-access",
                "peer mapping|peer access|peer gpu|cuda ipc|cuipc|cudaipc|hipipc|peer-to-peer|cumem host"
                "|cumemimport|cuda failure|shm.cc",
                r"peer access is not supported|peer mapping resources exhausted|failed to open CUDA IPC"
                r"|(?:cuda|hip)Ipc(?:Get|Open)MemHandle.*(?:fail|invalid)|\bPeer GPU \d+ is not accessible"
                r"|(?:Cuda failure|CUDA error)[ :']*217|peer[- ]to[- ]peer (?:access )?(?:is )?not (?:supported"
                r"|available)|cuMem(?:ImportFromShareableHandle|Import\w*).*(?:fail|not supported|invalid)",
            ),
        ),
    ),
    Rule(
        "p2p-not-supported",
        "NCCL could not map one GPU's memory into another's process",
        (
            Sign(
                "mapping-refused",
                "nccl warn",
                r"transport/p2p\.cc:\d+ NCCL WARN (?:Cuda|HIP) failure '?(?:invalid (?:argument|resource handle"
                r"|device context)|operation not supported)",
            ),
        ),
        confidence="medium",
    ),
    Rule(
        "p2p-hang-acs-iommu",
        "GPUs of one machine hang at their first exchange and stay busy: peer-to-peer traffic is lost in ACS "
        "or the IOMMU",
        (
            Sign(
                "p2p-disable-cures",
                "p_disable",
                r"NCCL_P2P_DISABLE=1\b.*(?:work|fix|solve|cure|help|resolve|pass|complete|success|fine|run)"
                r"|(?:work|fix|solve|run|pass|hang)\w*\b.*NCCL_P2P_DISABLE=1",
            ),
            Sign(
                "iommu-faults",
                "dmar|io_page_fault|iommu|amd-vi|acsctl",
                r"DMAR:.*(?:fault|PTE)|IO_PAGE_FAULT|AMD-Vi: .*(?:Event|fault)",
            ),
            "hangs-with-busy-gpus",
        ),
        needs=("nccl-or-cuda",),
        confidence="medium",
        tier=Tier.NETWORK,
    ),
    Rule(
        "p2p-hang-acs-iommu",
        "it hangs on a machine whose IOMMU is on",
        (Sign("iommu-on", "iommu=", r"\b(?:intel|amd)_iommu=on|iommu=soft"),),
        needs=("hangs", "nccl-or-cuda"),
        confidence="low",
        tier=Tier.SYMPTOM,
    ),
    Rule(
        "p2p-hang-acs-iommu",
        "RCCL warns that the IOMMU is not passed through, and nothing shows that its ranks got past that",
        (
            Sign(
                "iommu-not-passed",
                "from kernel command line",
                r"Missing .?(?:amd_)?iommu=\w+\W from kernel command line",
            ),
        ),
        unless=("joined", "progress-seen"),
        confidence="low",
        tier=Tier.NETWORK,
    ),
    Rule(
        "nvls-multicast-failure",
        "NVLink SHARP multicast fails",
        (
            Sign(
                "nvls",
                "nvls|multicast",
                r"transport/nvls\.cc.*(?:NCCL WARN|fail|error|-> [1-9])|NVLS.*(?:fail|error)"
                r"|cuMulticast\w+.*(?:fail|error|invalid|not)|multicast.*(?:fail|bind)",
            ),
        ),
    ),
    Rule(
        "imex-channel-missing",
        "memory cannot be shared over the multi-node NVLink: no IMEX channel for this process",
        (
            Sign(
                "imex",
                "imex|cumemcreate|fabric handle|cumem|cuda failure",
                r"IMEX.*(?:not|fail|missing|error|unavail)|cuMemCreate.*(?:not permitted|800|NOT_PERMITTED)"
                r"|not permitted in expression cuMemCreate|fabric handle.*(?:fail|not permitted|not supported)"
                r"|(?:Cuda failure|CUDA error)[ :']*800\b|nvidia-caps-imex-channels.*(?:No such|missing|denied)",
            ),
        ),
    ),
    Rule(
        "mismatched-collectives",
        "the ranks called different collectives, or with different sizes: {how}",
        (
            Sign(
                "collectives-differ",
                "appears not to match sizes|collective mismatch|mpi_err_truncate|message truncated|instead of"
                "|same model across|inconsistent|mismatch|collectivefingerprint|mismatched|shape mismatch"
                "|size mismatch|preamble|different collective|differing",
                r"Detected mismatch between collectives|collective mismatch error(?:, (?P<how>local size \d+ remote "
                r"size \d+))?|appears not to match sizes of the same param|MPI_ERR_TRUNCATE|message truncated ?: "
                r"(?P<how2>receiving \d+ bytes instead of \d+)|error in P?MPI_\w+: Message truncated"
                r"|expects same model across all ranks|has inconsistent \d+ params|CollectiveFingerPrint.*(?:differ"
                r"|mismatch)|Mismatched collective|collective (?:shape|size|type|operation) mismatch"
                r"|Mismatched? (?:allreduce|allgather|broadcast|data types|\w* ?tensor shapes|reduce|op)"
                r"|ranks? (?:called|are running|is running) different collectives|Collective sequence.*mismatch",
            ),
            "watchdog-differs",
        ),
        tier=Tier.NETWORK,
    ),
    Rule(
        "mismatched-collectives",
        "gloo received more than it had room for: two ranks entered one collective with different sizes",
        (Sign("gloo-preamble", "preamble.length", r"op\.preamble\.length <= op\.nbytes"),),
        tier=Tier.NETWORK,
        confidence="low",
    ),
    Rule(
        "allreduce-wrong-data",
        "the collective's results are wrong: {wrong} elements at a size of {bytes} bytes",
        (
            Sign(
                "wrong-elements",
                "float|half|double|int|fp|bf",
                rf"(?:^|\s)(?P<bytes>\d+)\s+\d+\s+[a-z]\w*(?:\s+[a-z]\w*)?(?:\s+-?\d+)?\s+{MEASURED}\s+(?:"
                rf"(?P<wrong>[1-9]\d*)(?:\s|$)|(?:0|N/A)\s+{MEASURED}\s+(?P<wrong2>[1-9]\d*)(?:\s|$))",
            ),
        ),
        way="logs",
    ),
    Rule(
        "allreduce-wrong-data",
        "the collective's results are wrong: {wrong} elements",
        (Sign("out-of-bounds", "out of bounds values", r"Out of bounds values\s*:\s*(?!0\b)(?P<wrong>\d+) FAILED"),),
        way="logs",
    ),
    Rule(
        "collective-stall-uniform",
        "every rank waits in the same collective: transport or GPU, not the program's order of calls",
        ("watchdog-uniform",),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "collective-stall-uniform",
        "a collective did not finish in time; one rank's lines alone do not tell who was late",
        (
            "watchdog-alone",
            Sign(
                "watchdog-stuck",
                "got stuck for|heartbeat monitor",
                r"watchdog got stuck for \d+ seconds|Heartbeat monitor timed out",
            ),
        ),
        tier=Tier.ABORT,
        confidence="low",
    ),
)

SIGNS = (
    Sign("nccl-version", "nccl version", r"NCCL version (?P<version>\d+\.\d+(?:\.\d+)?)"),
    Sign(
        "watchdog",
        "watchdog caught collective|collective operation timeout",
        r"(?:\[(?P<pg>PG[^\]]*?"
        r"|[^\]]*?) ?Rank (?P<rank>\d+)\])?.*collective operation timeout: Work\w+\((?:SeqNum=(?P<seq>\d+), "
        r")?(?:OpType=(?P<op>\w+))?(?:, NumelIn=(?P<nin>\d+), NumelOut=(?P<nout>\d+))?",
        keep=8000,
    ),
    Sign(
        "watchdog-state",
        "last enqueued",
        r"(?:\[(?P<pg>PG[^\]]{1,60}?) ?Rank (?P<rank>\d+)\].{0,200}?)?(?:work: (?P<seq>\d+), )?last enqueued "
        r"(?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)",
        keep=8000,
    ),
    Sign(
        "nccl-failed",
        "nccl error|unhandled system error|unhandled cuda error|internal error|ncclsystemerror"
        "|ncclinternalerror|ncclunhandledcudaerror|nccl failure|invalid usage",
        r"NCCL (?:error|failure)|unhandled (?:system|cuda) error"
        r"|nccl(?:System|Internal|UnhandledCuda|InvalidUsage)\w*|internal error.*NCCL",
    ),
    Sign(
        "nccl-warn",
        "nccl warn| warn |warn net|warn bootstrap",
        r"NCCL WARN(?! Missing .{1,12} from kernel command line| NUMA auto balancing)|\.(?:cc|cu|h):\d+ WARN "
        r"|^WARN (?:NET|Bootstrap|Net|Call|Cuda)",
    ),
    Sign("nccl-or-cuda", "nccl|cuda|gpu", r"nccl|cuda|\bgpus?\b|gpu[_-]", keep=4),
    Sign(
        "failed-collective",
        "nccl|hccl|rccl|oneccl|gloo|collective|process group",
        r"(?:NCCL|HCCL|RCCL|oneCCL|Gloo|ProcessGroup|collective)\w*.*(?:Error|error|fail)",
    ),
    Sign("hangs", "hang|hung|stuck", r"^(?!.*\bcan lead to\b)(?:.*\b(?:hangs?|hung|hanging|stuck)\b)"),
    Sign(
        "busy-gpus",
        "utili|gpu-util|gpus at|      default",
        r"(?:100 ?%.*(?:util|GPU)|(?:util|GPU)\w*.*\b100 ?%)|\b100% +Default",
    ),
    Sign("p-to-p-channels", "via p|connected all", r"via P2P/|Connected all (?:rings|trees)"),
    Sign("via-net", "via net", None, keep=4),
    Sign("progress-seen", "out-of-place|avg bus bandwidth|all_reduce ok", r"Avg bus bandwidth|all_reduce ok"),
    Sign(
        "failed",
        "error|fail|timed out|timeout|traceback|exitcode",
        r"Error\b|error:|fail|timed? ?out|Traceback|exitcode",
        keep=4,
    ),
)
