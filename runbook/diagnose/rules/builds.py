"""What a build of torch or a library lacks, and limits of the machine it runs on."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

RULES = (
    Rule(
        "nccl-not-built-in",
        "this torch has no NCCL (Windows, macOS or a CPU build)",
        (
            Sign(
                "no-nccl",
                "nccl|not compiled with cuda",
                r"doesn't have NCCL built ?in|does not have NCCL|NCCL (?:backend )?is not (?:available|supported"
                r"|compiled|built)|without NCCL(?!_)|(?:not|n't)(?: \w+){0,3} (?:built|compiled) with NCCL"
                r"|has no attribute '_?ProcessGroupNCCL|cannot import name '_?ProcessGroupNCCL'|NCCL support (?:is "
                r")?not|[Bb]ackend '?nccl'? (?:is )?(?:not (?:available|supported|built)|unavailable)"
                r"|(?:unknown|invalid|unsupported) (?:c10d )?backend(?: type)?:? '?nccl|Horovod has not been built "
                r"with NCCL",
            ),
            Sign("cpu-build", "not compiled with cuda", r"Torch not compiled with CUDA enabled"),
        ),
    ),
    Rule(
        "torch-distributed-not-built",
        "this torch was built without torch.distributed",
        (
            Sign(
                "no-distributed",
                "torch.distributed|torch._c|distributed package|distributed support|use_distributed",
                r"module '?torch(?:\.distributed|\._C)'? has no attribute '?(?:init_process_group|_c10d_init"
                r"|_distributed_c10d|is_initialized|ReduceOp|ProcessGroup\b|Store\b|get_rank|get_world_size"
                r"|is_available|barrier|all_reduce|all_gather|broadcast|new_group|group\b|GroupMember"
                r"|is_nccl_available)|cannot import name '(?:ProcessGroup|Store|ReduceOp|init_process_group"
                r"|Work)' from 'torch\.(?:distributed|_C\._distributed_c10d)'|Requires distributed package to be "
                r"available|No module named '?torch\._C\._distributed_c10d|torch\.distributed is not available"
                r"|distributed package is not available|without distributed support|USE_DISTRIBUTED=0",
            ),
        ),
    ),
    Rule(
        "libuv-not-built",
        "the store asks for libuv, which this torch lacks",
        (
            Sign(
                "no-libuv",
                "libuv",
                r"libuv was requested but|without libuv support|libuv is not (?:available|supported)",
            ),
        ),
    ),
    Rule(
        "gloo-windows-device",
        "gloo cannot make its transport on this machine",
        (
            Sign(
                "no-gloo-device",
                "makedevicefor|makeuvdevice|unsupported gloo device|interface or hostname",
                r"makeDeviceFor\w+\(\): unsupported gloo device|makeUVDevice|unsupported gloo device"
                r"|interface or hostname can't be empty",
            ),
        ),
    ),
    Rule(
        "shm-too-small",
        "/dev/shm is too small for what NCCL or the data loaders put there",
        (
            Sign(
                "shm-full",
                "/torch_|nonexistent physical|/dev/shm|shm.h|shm.cc|shmutils|posix_fallocate"
                "|insufficient shared memory|shared memory|shm_open|torch_shm",
                r"posix_fallocate.*(?:failed|No space)|Error while (?:creating|attaching to) shared memory segment"
                r"|not enough space for /dev/shm|unable to \w+ (?:to |from )?file </torch_(?!.*Too many open)"
                r"|shared memory\(shm\) for file|failed to extend /dev/shm|exceeds /dev/shm size"
                r"|/dev/shm.*(?:No space|too small|full|exceed|Cannot allocate)|insufficient shared memory"
                r"|out of shared memory|Bus error: nonexistent physical address|(?:shm\.h|shm\w*\.cc).*(?:No space"
                r"|\(28\)|error 28\b)|unable to (?:mmap|allocate|write|open|resize).*shared memory(?!.*Too many open)"
                r"|No space left.*(?:/dev/shm|torch_\d+_)",
            ),
        ),
    ),
    Rule(
        "open-files-limit",
        "the limit of open files is reached",
        (
            Sign(
                "too-many-files",
                "too many open files|errno |errno: |emfile|items of ancdata|打开的文件过多|zu viele offene dateien",
                r"Too many open files|Errno (?:23|24)\b|errno: 24\b|\bEMFILE\b|received 0 items of ancdata"
                r"|打开的文件过多|Zu viele offene Dateien",
            ),
        ),
    ),
    Rule(
        "disk-full",
        "no room is left on the disk that was written to",
        (
            Sign(
                "no-space",
                "no space left|disk quota|errno |enospc|not enough space|winerror|failed writing file"
                "|unexpected pos|full, available space|storagefull|file write failed|ephemeral|diskpressure"
                "|设备上没有空间|kein speicherplatz",
                r"No space left on device|Disk quota exceeded|Errno (?:28|122)\b|WinError 112\b|\bENOSPC\b"
                r"|not enough space on the disk|PytorchStreamWriter failed writing file"
                r"|inline_container.*unexpected pos \d+ vs \d+|is over \d+% full, available space|StorageFull"
                r"|low on resource: ephemeral-storage|ephemeral (?:local )?storage usage exceeds"
                r"|exceeds? (?:its |the )?(?:total |pod )*(?:limit of )?(?:local )?ephemeral"
                r"|\bDiskPressure\b(?!\s*(?:=|:)? ?False)|设备上没有空间|Kein Speicherplatz",
            ),
        ),
        unless=("shm-full",),
    ),
    Rule(
        "workdir-not-writable",
        "the job may not write where it wants to",
        (
            Sign(
                "read-only",
                "read-only file system|permission denied: '",
                r"Read-only file system|PermissionError: \[Errno 13\] Permission denied: ",
            ),
        ),
        confidence="medium",
    ),
    Rule(
        "memlock-limit",
        "the limit of locked memory is too low to register memory for RDMA",
        (
            Sign(
                "cannot-lock",
                "ibv_reg_mr|ibv_create|locked memory|memlock|create_cq|create_qp|max locked|register memory"
                "|mlock|ibv_alloc|couldn't allocate mr|couldn't create cq",
                r"RLIMIT_MEMLOCK is \d+|^Couldn't (?:allocate MR|create CQ)|ibv_(?:reg_mr\w*|create_cq|create_qp"
                r"|alloc_pd|exp_reg_mr|reg_dmabuf_mr).*(?:Cannot allocate memory|failed with error 12\b|ENOMEM)"
                r"|max(?:imum)? (?:amount of )?locked memory.*(?:too|small|low|insufficient|\b\d+ ?KB)"
                r"|memlock limits are|memlock.*(?:too (?:low|small)|insufficient|limit)|(?:UCX|openib|fi_mr_reg"
                r"|MR).*(?:register|registration).*(?:Cannot allocate memory|memlock)",
            ),
        ),
        unless=("creates-mkey",),
    ),
    Rule(
        "nccl-library-missing-or-conflict",
        "the NCCL library that is loaded is not the one this build needs, or none is found: {symbol}",
        (
            Sign(
                "nccl-library",
                "undefined symbol|libnccl|unable to load nccl|nccl library|symbol lookup error|version 'nccl"
                "|ncclgetversion|no version information|nccl_error|symbol not found",
                r"undefined symbol: (?P<symbol>p?nccl\w+)|Unable to load NCCL|libnccl\.so\S*:? (?:cannot open|version"
                r"|(?:was )?not found|file too short|wrong ELF)|NCCL library (?:was )?not found|(?:no|not find"
                r"|without)\b.{0,20}libnccl\.so|(?:could not|cannot|failed to) (?:find|load|open|dlopen"
                r"|locate).{0,30}\b(?:libnccl(?!-net|-tuner|-profiler)|nccl library)|nccl.*(?<!named )symbol not found",
            ),
        ),
    ),
    Rule(
        "nccl-version-mismatch",
        "the ranks load different versions of NCCL",
        (
            Sign(
                "nccl-versions",
                "nccl",
                r"(?:mismatch(?:ed)?|different) NCCL versions?\b|(?:mismatch(?:ed)?|different) versions?\b.*NCCL"
                r"|NCCL.{0,40}(?:version mismatch|mismatched versions|different versions?\b|versions? (?:do not"
                r"|don't) match)|Bootstrap.*(?:magic|version).*mismatch",
            ),
            Sign("truncated", "message truncated", r"Message truncated : received \d+ bytes instead of \d+"),
        ),
        confidence="medium",
        tier=Tier.NETWORK,
    ),
    Rule(
        "nccl-version-mismatch",
        "the nodes load different versions of NCCL: {versions}",
        ("nccl-versions-differ",),
        needs=("nccl-failing",),
        confidence="medium",
        tier=Tier.NETWORK,
    ),
    Rule(
        "nccl-version-bug",
        "NCCL before 2.26 gives up at a slot of the GID table that it cannot read, as empty ones in a container are",
        (
            Sign(
                "gid-slot-unreadable",
                "getversionnum",
                r"(?:fail|WARN).*ncclIbRoceGetVersionNum|ncclIbRoceGetVersionNum.*(?:fail|Invalid argument|error)",
            ),
        ),
        confidence="medium",
        tier=Tier.NETWORK,
        way="gid-index",
    ),
    Rule(
        "nccl-version-bug",
        "a known bug of this NCCL version",
        (
            Sign(
                "crash-in-nccl",
                "libnccl",
                r"(?:segfault|SIGSEGV|error \d+ in|^#\d+|frame).*libnccl\.so|in libnccl\.so\.\d",
            ),
            Sign(
                "nccl-bug",
                "nccl|no algorithm|segfault|coll_net",
                r"no algorithm/protocol available|NCCL.*(?:this is a (?:known )?(?:bug|issue)|please upgrade"
                r"|fixed in (?:NCCL )?\d)|(?:upgrad|downgrad)(?:e|ed|ing) (?:to )?NCCL \d|proxy\.cc.*Assertion"
                r"|graph/\w+\.cc.*Assertion",
            ),
        ),
        confidence="medium",
        tier=Tier.NETWORK,
    ),
    Rule(
        "nccl-version-bug",
        "a check inside NCCL failed: a bug of this version, or damaged memory",
        (Sign("nccl-internal", "report this issue to the nccl|ncclinternalerror|internal check failed", None),),
        needs=("nccl-warn",),
        confidence="low",
        tier=Tier.ABORT,
    ),
    Rule(
        "gpu-arch-unsupported",
        "this build has no code for the GPU: {arch}",
        (
            Sign(
                "no-kernel-image",
                "nobinaryforgpu|no kernel image|is not compatible with the current|not compatible with"
                "|named symbol not found|unsupported gpu|sm_|invalid device function|unsupported toolchain|ptx"
                "|compute capability|ampere gpus or newer|tensilelibrary|hopper gpus|error ",
                r"hipErrorNoBinaryForGpu|Cannot read \S*TensileLibrary|no kernel image is available"
                r"|CUDA capability (?P<arch>sm_\d+) is not compatible|named symbol not found|unsupported gpu "
                r"architecture|PTX JIT|invalid device function|error 209\b|ptxas fatal|only supports? (?:Ampere|Hopper"
                r"|Volta|Turing|Blackwell) GPUs|only supported on GPUs with compute capability|requires? (?:a "
                r")?(?:GPU with )?compute capability",
            ),
        ),
    ),
)

SIGNS = (
    Sign("nccl-failing", "nccl warn|nccl error|watchdog|nccl failure", None, keep=4),
    Sign("creates-mkey", "create_mkey", None),
)
