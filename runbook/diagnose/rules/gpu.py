"""GPUs: driver, memory, hardware, and what the kernel logs about them (Xid)."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier


def xid(numbers: str) -> str:
    """A pattern of these Xid numbers in a kernel line."""
    return rf"\bXid\b(?: \([^)]*\))?:? *(?P<xid>{numbers})\b"


RULES = (
    Rule(
        "device-ordinal-invalid",
        "{who} asked for a GPU that it does not see: more processes than visible GPUs",
        (
            Sign("bad-ordinal", "invalid device ordinal|num_gpus|invalid device id|device ordinal|no such gpu|device index|specified gpu|visible devices|gpus available|available gpus|machine only has|gpus (|> gpus", r"device < num_gpus|machine only has: ?\[|only \d+ GPUs? (?:are |is )?available|\(\d+ ?> ?\d+\).*GPUs?|invalid device (?:ordinal|id\b|index)|device ordinal .* (?:invalid|out of range)|(?:nproc|processes|ranks|parallel size)\S* .*(?:more|greater|larger|exceed)\S* .*(?:GPUs?|devices)|device index .* out of range|CUDA error 101\b|only \d+ (?:GPUs?|devices) (?:is|are) (?:visible|available)"),
        ),
    ),
    Rule(
        "no-gpu-visible",
        "{who} sees no GPU",
        (
            Sign(
                "no-gpus-found",
                "no hip gpus|no cuda|no gpus|no nvidia|no gpu|cuda-capable|cuda is not available|cuda gpus|cuda.is_available|no devices|no device|found no|no visible|communicate with the nvidia driver|could not select device driver|no supported devices|driver not loaded|accelerator|infer device type|device_count() |unable to initialize backend",
                r"No HIP GPUs are available|couldn't communicate with the NVIDIA driver|could not select device driver|no supported devices found|driver not loaded|accelerator (?:\w+ )?(?:is not|isn't) available|Failed to infer device type|device_count\(\) (?:==|is|returned|=) ?0\b|no CUDA-capable device|No CUDA GPUs are available|no GPUs? (?:found|available|detected|were found)|Found no NVIDIA driver|CUDA is not available|No CUDA (?:runtime|devices?)|no (?:CUDA )?devices? (?:were )?found(?!\.$)|torch\.cuda\.is_available\(\) (?:is|returned|==) ?False|No visible (?:GPU|CUDA|device)|No devices were found|no nvidia device",
            ),
        ),
        unless=("ib-no-device-text",),
    ),
    Rule(
        "driver-too-old",
        "the NVIDIA driver is older than this CUDA needs",
        (Sign("old-driver", "unsupported toolchain|driver version is insufficient|driver on your system is too old|driver is too old|too old (found version|unsupported driver|cuda_error_system_driver|minimum driver|insufficient driver|insufficientdriver|requires driver|forward compatibility|installed cuda driver|newerdriver|requires a newer|update your driver|unsatisfied condition", r"unsatisfied condition: (?:cuda|driver)|update your driver to a newer|driver version is insufficient|NVIDIA driver on your system is too old|PTX was compiled with an unsupported|driver.{0,20}too old|unsupported driver version|InsufficientDriver|requires (?:a newer |NVIDIA )?driver|cudaErrorCompatNotSupported|forward compatibility was attempted|not supported in the installed CUDA driver|RequiresNewerDriver"),),
    ),
    Rule(
        "driver-library-mismatch",
        "the loaded NVIDIA kernel module and the user libraries have different versions",
        (Sign("driver-differs", "driver/library|version mismatch|api mismatch|system_driver_mismatch|driver mismatch|kernel module|nvrm:|unsupported display driver", r"LibRmVersionMismatch|NVML/RM version mismatch|driver/library version mismatch|API mismatch: the client has|SYSTEM_DRIVER_MISMATCH|system has unsupported display driver|NVML library version|kernel module.{0,60}(?:does not match|but this NVIDIA|mismatch)"),),
        remedy="reboot, or unload and load the nvidia modules again (`cat /proc/driver/nvidia/version` against `nvidia-smi`)",
    ),
    Rule(
        "fabricmanager-down",
        "the NVSwitch system is not initialised: nvidia-fabricmanager does not run, or has another version than the driver",
        (
            Sign(
                "system-not-ready",
                "in progress|system not yet initialized|system_not_ready|fabric manager|fabricmanager|systemnotready|error |nvswitch",
                r"system not yet initialized|SYSTEM_NOT_READY|SystemNotReady|(?:CUDA |cuda )(?:error|failure)[ :]*802\b|error 802\b|fabric[ -]?manager.*(?:is not running|not running|inactive|dead|not installed|version mismatch|mismatch|failed to start)|^\s*State\s+: In Progress",
            ),
            Sign("fabric-service-failed", "fabricmanager|fabric manager", r"fabric manager.*don't match with driver|fabricmanager\.service.*(?:failed|FAILURE)|Failed to start .*fabric ?manager|fabric manager.*(?:failed|error)"),
        ),
        unless=("no-nvswitch",),
    ),
    Rule(
        "gpu-out-of-memory",
        "{who} has no GPU memory left",
        (
            Sign(
                "gpu-memory",
                "out of memory|outofmemory|resourceexhausted|oom when|failed to cuda calloc|resource_exhausted|memory_allocation|alloc_failed|failed to cuda malloc|cudamalloc|cache blocks|free memory on device|mem-fraction|gpu memory",
                r"^(?!.*(?:nvls\.cc|\(NVLS\)))(?:.*?)(?:ResourceExhaustedError|OOM when allocating tensor.*GPU|CUDA out of memory|(?<!ray\.exceptions\.)OutOfMemoryError|No available memory for the cache blocks|Free memory on device .*less than|Not enough memory\..*mem-fraction|not enough (?:free )?GPU memory|(?:Cuda failure|CUDA error|cuda\w*)\b.{0,30}out of memory|Failed to CUDA (?:calloc|malloc)|RESOURCE_EXHAUSTED: .*(?:memory|alloc)|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|HIP out of memory|ALLOC_FAILED|cudaErrorMemoryAllocation|cudaMalloc failed: out of memory)",
            ),
        ),
    ),
    Rule(
        "gpu-fell-off-bus",
        "a GPU is lost: the driver cannot talk to it any more",
        (
            Sign(
                "gpu-lost",
                "xid|fallen off the bus|gpu is lost|determine the device handle|gpu_is_lost|gpu lost|rminit|device_unavailable",
                xid("79") + r"|fallen off the bus|GPU is lost|Unable to determine the device handle|GPU_IS_LOST|RmInitAdapter failed|\bXid\b.*GPU has fallen",
            ),
        ),
    ),
    Rule(
        "gpu-ecc-uncorrectable",
        "uncorrectable memory errors on a GPU",
        (Sign("ecc", "ecc|xid|uncorrectable", xid("48|94|95|171|172|140") + r"|\b[1-9]\d* (?:new )?uncorrectable hardware errors|uncorrectable ECC|ECC_UNCORRECTABLE|double[- ]bit (?:ecc )?error|ecc error.*uncorrect"),),
    ),
    Rule(
        "nvlink-error",
        "NVLink fails between GPUs",
        (Sign("nvlink", "nvlink|xid|sxid", xid("74|14[4-9]|150") + r"|uncorrectable NVLink|NVLINK_UNCORRECTABLE|\bSXid\b.*: 2\d{4}|NVLink.*(?:fatal|link down|inactive|training fail)"),),
    ),
    Rule(
        "gpu-reset-required",
        "a GPU waits for a reset",
        (
            Sign(
                "needs-reset",
                "xid|reset required|reset gpu|pending|drain and reset|requires reset|requires a reset|gpu requires|remap|gsp|probably locked|rpcrecvpoll|need a reset|needs to be reset|row remapper|amdgpu",
                xid("6[1-4]|119|120|154|62|136|143") + r"|GPU Reset Required|reset gpu to activate|Pending\s*:\s*Yes|Remapping Failure Occurred\s*:\s*Yes|GPU\b.{0,20} requires? (?:a )?reset|Timeout.*RPC.*GSP|GSP RPC timeout|rpcRecvPoll timedout|GSP RM heartbeat timed out|NV_ERR_RESET_REQUIRED|GPU is probably locked|reset_required|\bamdgpu\b.*(?:ring \S+ (?:timeout(?!.*recovered)|reset failed)|GPU reset begin|GPU reset\S* failed)|GPU (?:needs|is in need of)(?: to be| a)? reset",
            ),
        ),
    ),
    Rule(
        "gpu-illegal-access",
        "a GPU kernel read or wrote where it must not: the program first, hardware only if it follows one GPU",
        (
            Sign(
                "illegal-access",
                "illegal memory access|xid|illegal instruction|illegal address|unspecified launch|device-side assert|misaligned address|illegal_address|illegaladdress|misalignedaddress|launch failure|launchfailure|launch_failed|errorassert|mmu fault|memory access fault|warp exception|assertion `|page fault",
                r"Memory access fault by GPU|\bamdgpu\b.*\bpage fault|\.cu:\d+:.*: block: \[.*Assertion|" + xid("13|31|32|43|69") + r"|illegal memory access|illegal instruction was encountered|unspecified launch failure|CUDA error: (?:misaligned address|device-side assert)|\b(?:cuda|hip)Error(?:LaunchFailure|IllegalAddress|MisalignedAddress|Assert)\b|CUDA_ERROR_LAUNCH_FAILED|ILLEGAL_ADDRESS|an illegal address|MMU Fault|device-side assert triggered",
            ),
        ),
    ),
    Rule(
        "gpu-illegal-access",
        "the driver ended a process's GPU channel",
        (Sign("xid-cleanup", "xid", xid("45|109")),),
        tier=Tier.ABORT,
        confidence="low",
    ),
    Rule(
        "gpu-busy",
        "another process holds the GPU for itself",
        (Sign("gpu-taken", "busy or unavailable|device_unavailable|device is busy", r"devices?\(s\) is/are busy or unavailable|all CUDA-capable devices are busy"),),
    ),
    Rule(
        "duplicate-gpu",
        "two ranks use the same GPU",
        (Sign("same-gpu", "duplicate gpu|same gpu|same device|both on cuda device|using the same", r"Duplicate GPU detected|(?:ranks?|processes) .*(?:same|shar\w+ (?:a|one)) (?:GPU|CUDA device)|both on CUDA device"),),
        remedy="torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything else, and one rank a GPU in CUDA_VISIBLE_DEVICES",
    ),
)  # fmt: skip

SIGNS = (
    Sign(
        "no-nvswitch",
        "nothing_to_do|nothing to do|no nvswitch|nvswitch not|pre-nvl",
        r"NOTHING_TO_DO|no NVSwitch|NVSwitch(?:es)? (?:is |are )?not (?:found|present|detected)",
    ),
    Sign("ib-no-device-text", "net/ib|ib devices|ibstat", None, keep=4),
    Sign("cuda-error", "cuda error|cuda failure|cublas|cudnn|acceleratorerror", None),
)
