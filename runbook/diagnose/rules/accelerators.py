"""GPUs and other accelerators: driver, memory, hardware, and what the kernel logs about them (Xid).

Those that are not NVIDIA's: AMD (HIP, amdgpu), Ascend (CANN, HCCL), Intel (XPU, Gaudi), AWS Neuron, TPUs. Their faults
are the same as NVIDIA's and have the same causes; only the words differ, and the tools of a remedy.
"""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier
from runbook.parsers.nvidia import CAUSE_OF


def xid(*numbers: int) -> str:
    """A pattern of these Xid numbers in a kernel line."""
    return rf"\bXid\b(?: \([^)]*\))?:? *(?P<xid>{'|'.join(map(str, sorted(numbers)))})\b"


def xids_of(cause: str) -> tuple[int, ...]:
    """The numbers that prove a cause, for the live check as well."""
    return tuple(number for number, proven in CAUSE_OF.items() if proven == cause)


RULES = (
    Rule(
        "device-ordinal-invalid",
        "{who} asked for a GPU that it does not see: more processes than visible GPUs",
        (
            Sign(
                "bad-ordinal",
                "invalid device ordinal|num_gpus|invalid device id|device ordinal|no such gpu|device index"
                "|specified gpu|visible devices|gpus available|available gpus|machine only has|gpus (|> gpus",
                r"device < num_gpus|machine only has: ?\[|only \d+ GPUs? (?:are |is )?available|\(\d+ ?> ?\d+\).*GPUs?"
                r"|invalid device (?:ordinal|id\b|index)|device ordinal .* (?:invalid|out of range)"
                r"|(?:nproc|processes|ranks|parallel size)\S* .*(?:more|greater|larger|exceed)\S* .*(?:GPUs?|devices)"
                r"|device index .* out of range|CUDA error 101\b|only \d+ (?:GPUs?|devices) (?:is|are) (?:visible"
                r"|available)",
            ),
        ),
    ),
    Rule(
        "no-gpu-visible",
        "{who} sees no GPU",
        (
            Sign(
                "no-gpus-found",
                "no hip gpus|no cuda|no gpus|no nvidia|no gpu|cuda-capable|cuda is not available|cuda gpus"
                "|cuda.is_available|no devices|no device|found no|no visible"
                "|communicate with the nvidia driver|could not select device driver|no supported devices"
                "|driver not loaded|accelerator|infer device type|device_count() |unable to initialize backend",
                r"No HIP GPUs are available|couldn't communicate with the NVIDIA driver|could not select device driver"
                r"|no supported devices found|driver not loaded|accelerator (?:\w+ )?(?:is not|isn't) available"
                r"|Failed to infer device type|device_count\(\) (?:==|is|returned|=) ?0\b|no CUDA-capable device"
                r"|No CUDA GPUs are available|no GPUs? (?:found|available|detected|were found)|Found no NVIDIA driver"
                r"|CUDA is not available|No CUDA (?:runtime|devices?)|no (?:CUDA )?devices? (?:were )?found(?!\.$)"
                r"|torch\.cuda\.is_available\(\) (?:is|returned|==) ?False|No visible (?:GPU|CUDA|device)"
                r"|No devices were found|no nvidia device",
            ),
        ),
        unless=("ib-no-device-text",),
    ),
    Rule(
        "driver-too-old",
        "the NVIDIA driver is older than this CUDA needs",
        (
            Sign(
                "old-driver",
                "unsupported toolchain|driver version is insufficient|driver on your system is too old"
                "|driver is too old|too old (found version|unsupported driver|cuda_error_system_driver"
                "|minimum driver|insufficient driver|insufficientdriver|requires driver|forward compatibility"
                "|installed cuda driver|newerdriver|requires a newer|update your driver|unsatisfied condition",
                r"unsatisfied condition: (?:cuda|driver)|update your driver to a newer|driver version is insufficient"
                r"|NVIDIA driver on your system is too old|PTX was compiled with an unsupported|driver.{0,20}too old"
                r"|unsupported driver version|InsufficientDriver|requires (?:a newer |NVIDIA )?driver"
                r"|cudaErrorCompatNotSupported|forward compatibility was attempted|not supported in the installed "
                r"CUDA driver|RequiresNewerDriver",
            ),
        ),
    ),
    Rule(
        "driver-library-mismatch",
        "the loaded NVIDIA kernel module and the user libraries have different versions",
        (
            Sign(
                "driver-differs",
                "driver/library|version mismatch|api mismatch|system_driver_mismatch|driver mismatch"
                "|kernel module|nvrm:|unsupported display driver",
                r"LibRmVersionMismatch|NVML/RM version mismatch|driver/library version mismatch"
                r"|API mismatch: the client has|SYSTEM_DRIVER_MISMATCH|system has unsupported display driver"
                r"|NVML library version|kernel module.{0,60}(?:does not match|but this NVIDIA|mismatch)",
            ),
        ),
    ),
    Rule(
        "fabricmanager-down",
        "the NVSwitch system is not initialised: nvidia-fabricmanager does not run, or has another version "
        "than the driver",
        (
            Sign(
                "system-not-ready",
                "in progress|system not yet initialized|system_not_ready|fabric manager|fabricmanager"
                "|systemnotready|error |nvswitch",
                r"system not yet initialized|SYSTEM_NOT_READY|SystemNotReady|(?:CUDA |cuda )(?:error"
                r"|failure)[ :]*802\b|error 802\b|fabric[ -]?manager.*(?:is not running|not running|inactive|dead"
                r"|not installed|version mismatch|mismatch|failed to start)|^\s*State\s+: In Progress",
            ),
            Sign(
                "fabric-service-failed",
                "fabricmanager|fabric manager",
                r"fabric manager.*don't match with driver|fabricmanager\.service.*(?:failed|FAILURE)"
                r"|Failed to start .*fabric ?manager|fabric manager.*(?:failed|error)",
            ),
        ),
        unless=("no-nvswitch",),
    ),
    Rule(
        "gpu-out-of-memory",
        "{who} has no GPU memory left",
        (
            Sign(
                "gpu-memory",
                "out of memory|outofmemory|resourceexhausted|oom when|failed to cuda calloc|resource_exhausted"
                "|memory_allocation|alloc_failed|failed to cuda malloc|cudamalloc|cache blocks"
                "|free memory on device|mem-fraction|gpu memory",
                r"^(?!.*(?:nvls\.cc|\(NVLS\)))(?:.*?)(?:ResourceExhaustedError|OOM when allocating tensor.*GPU"
                r"|CUDA out of memory|(?<!ray\.exceptions\.)OutOfMemoryError|No available memory for the cache blocks"
                r"|Free memory on device .*less than|Not enough memory\..*mem-fraction|not enough (?:free )?GPU memory"
                r"|(?:Cuda failure|CUDA error|cuda\w*)\b.{0,30}out of memory|Failed to CUDA (?:calloc|malloc)"
                r"|RESOURCE_EXHAUSTED: .*(?:memory|alloc)|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory"
                r"|HIP out of memory|ALLOC_FAILED|cudaErrorMemoryAllocation|cudaMalloc failed: out of memory)",
            ),
        ),
    ),
    Rule(
        "gpu-fell-off-bus",
        "a GPU is lost: the driver cannot talk to it any more",
        (
            Sign(
                "gpu-lost",
                "xid|fallen off the bus|gpu is lost|determine the device handle|gpu_is_lost|gpu lost|rminit"
                "|device_unavailable",
                xid(*xids_of("gpu-fell-off-bus"))
                + r"|fallen off the bus|GPU is lost|Unable to determine the device handle|GPU_IS_LOST"
                r"|RmInitAdapter failed|\bXid\b.*GPU has fallen",
            ),
        ),
    ),
    Rule(
        "gpu-ecc-uncorrectable",
        "uncorrectable memory errors on a GPU",
        (
            Sign(
                "ecc",
                "ecc|xid|uncorrectable",
                xid(*xids_of("gpu-ecc-uncorrectable"))
                + r"|\b[1-9]\d* (?:new )?uncorrectable hardware errors|uncorrectable ECC|ECC_UNCORRECTABLE"
                r"|double[- ]bit (?:ecc )?error|ecc error.*uncorrect",
            ),
        ),
    ),
    Rule(
        "nvlink-error",
        "NVLink fails between GPUs",
        (
            Sign(
                "nvlink",
                "nvlink|xid|sxid",
                xid(*xids_of("nvlink-error")) + r"|uncorrectable NVLink|NVLINK_UNCORRECTABLE|\bSXid\b.*: 2\d{4}"
                r"|NVLink.*(?:fatal|link down|inactive|training fail)",
            ),
        ),
    ),
    Rule(
        "gpu-reset-required",
        "a GPU waits for a reset",
        (
            Sign(
                "needs-reset",
                "xid|reset required|reset gpu|pending|drain and reset|requires reset|requires a reset|gpu requires"
                "|remap|gsp|probably locked|rpcrecvpoll|need a reset|needs to be reset|row remapper|amdgpu",
                xid(63, *xids_of("gpu-reset-required")) + r"|GPU Reset Required|reset gpu to activate|Pending\s*:\s*Yes"
                r"|Remapping Failure Occurred\s*:\s*Yes|GPU\b.{0,20} requires? (?:a )?reset|Timeout.*RPC.*GSP"
                r"|GSP RPC timeout|rpcRecvPoll timedout|GSP RM heartbeat timed out|NV_ERR_RESET_REQUIRED"
                r"|GPU is probably locked|reset_required|\bamdgpu\b.*(?:ring \S+ (?:timeout(?!.*recovered)"
                r"|reset failed)|GPU reset begin|GPU reset\S* failed)|GPU (?:needs|is in need of)(?: to be| a)? reset",
            ),
        ),
    ),
    Rule(
        "gpu-illegal-access",
        "a GPU kernel read or wrote where it must not: the program first, hardware only if it follows one GPU",
        (
            Sign(
                "illegal-access",
                "illegal memory access|xid|illegal instruction|illegal address|unspecified launch|device-side assert"
                "|misaligned address|illegal_address|illegaladdress|misalignedaddress|launch failure|launchfailure"
                "|launch_failed|errorassert|mmu fault|memory access fault|warp exception|assertion `|page fault",
                r"Memory access fault by GPU|\bamdgpu\b.*\bpage fault|\.cu:\d+:.*: block: \[.*Assertion|"
                + xid(13, 31, 32, 43, 69)
                + r"|illegal memory access|illegal instruction was encountered|unspecified launch failure"
                r"|CUDA error: (?:misaligned address|device-side assert)|\b(?:cuda|hip)Error(?:LaunchFailure"
                r"|IllegalAddress|MisalignedAddress|Assert)\b|CUDA_ERROR_LAUNCH_FAILED|ILLEGAL_ADDRESS"
                r"|an illegal address|MMU Fault|device-side assert triggered",
            ),
        ),
    ),
    Rule(
        "gpu-illegal-access",
        "the driver ended a process's GPU channel",
        (Sign("xid-cleanup", "xid", xid(45, 109)),),
        tier=Tier.ABORT,
        confidence="low",
    ),
    Rule(
        "gpu-busy",
        "another process holds the GPU for itself",
        (
            Sign(
                "gpu-taken",
                "busy or unavailable|device_unavailable|device is busy",
                r"devices?\(s\) is/are busy or unavailable|all CUDA-capable devices are busy",
            ),
        ),
    ),
    Rule(
        "duplicate-gpu",
        "two ranks use the same GPU",
        (
            Sign(
                "same-gpu",
                "duplicate gpu|same gpu|same device|both on cuda device|using the same",
                r"Duplicate GPU detected|(?:ranks?|processes) .*(?:same|shar\w+ (?:a|one)) (?:GPU|CUDA device)"
                r"|both on CUDA device",
            ),
        ),
    ),
    Rule(
        "gpu-out-of-memory",
        "{who} has no memory left on its accelerator",
        (
            Sign(
                "accelerator-memory",
                "out of memory|hip_error_outofmemory|alloc device memory failed|available memory is insufficient"
                "|_error_out_of_|pt_devmem|failed to alloc device memory|tensor_allocate|on nd |hbm",
                r"\b(?:NPU|XPU|HPU|MUSA|MLU|GCU|DCU|MPS)\b(?: \w+)? out of memory|HIP failure\W+out of memory"
                r"|HIP_ERROR_OutOfMemory|alloc device memory failed|Possible Cause: Available memory is insufficient"
                r"|\b(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)\b|PT_DEVMEM\b.*Allocation "
                r"failed|Failed to alloc DEVICE memory|Failed to allocate [\d.]+ ?[KMG]B .*\bon ND \d"
                r"|nrt_tensor_allocate status=4\b|Ran out of memory in memory space hbm|Exceeded hbm capacity",
            ),
        ),
        way="accelerator",
    ),
    Rule(
        "gpu-ecc-uncorrectable",
        "uncorrectable memory errors on an accelerator",
        (
            Sign(
                "accelerator-ecc",
                "hbm_ue|hbm uncorrectable|bit ecc|ecc error",
                r"NRT_EXEC_HW_ERR\w*HBM_UE|\bHBM uncorrectable|\bMULTI[ _-]BIT[ _-]ECC",
            ),
        ),
        way="accelerator",
    ),
    Rule(
        "gpu-reset-required",
        "the driver found an accelerator that hangs, and resets it or wants that",
        (
            Sign(
                "accelerator-hangs",
                "hw exception by gpu|gpu hang|engine reset|device coredump|unrecoverable state|vram is lost"
                "|is hung|gpu reset|exec_unit_unrecoverable|nrt_hw_error|exec_hw_err",
                r"HW Exception by GPU|\bGPU HANG: ecode|\bxe \S+ .*(?:Engine reset|GPU reset|device coredump has been "
                r"created|wedged)|\bamdgpu\b.*(?:MES might be in unrecoverable state|\bis hung\b|: GPU reset$)"
                r"|\bVRAM is lost|NRT_EXEC_UNIT_UNRECOVERABLE|NRT_HW_ERROR|NRT_EXEC_HW_ERR_(?:NC_UE|DMA_ABORT)",
            ),
        ),
        way="accelerator",
    ),
    Rule(
        "gpu-reset-required",
        "the runtime lost its accelerator: the driver reset it, or it hangs",
        (Sign("accelerator-lost", "_error_device_lost", r"\b(?:UR_RESULT|ZE_RESULT|PI)_ERROR_DEVICE_LOST\b"),),
        confidence="medium",
        way="amd-intel",
    ),
    Rule(
        "gpu-illegal-access",
        "a kernel on an accelerator read or wrote where it must not: the program first, hardware only if it "
        "follows one device",
        (
            Sign(
                "accelerator-fault",
                "hsa_status_error|hip error|aicore|aivec|ai core|vector core|error code",
                r"HSA_STATUS_ERROR_(?:MEMORY_APERTURE_VIOLATION|MEMORY_FAULT|ILLEGAL_INSTRUCTION|EXCEPTION)"
                r"|HIP error: (?:an illegal|unspecified launch failure|misaligned)|(?:NPU|ACL|acl\w*"
                r"|[Ss]tream)\b.{0,80}error code(?: is)?[: ]*(?:507011|507015|507035|507057)\b|\b(?:ai ?core|aivec"
                r"|vector core)\b.{0,20}\b(?:error exception|execution is abnormal|exception)",
            ),
        ),
        way="accelerator",
    ),
    Rule(
        "gpu-busy",
        "{who} could not get its accelerator: another process holds it, or is not gone yet",
        (
            Sign(
                "accelerator-taken",
                "device acquire failed|already acquired|alreadyacquired|syndeviceacquire|the hccp process"
                "|tpu is already in use|libtpu|couldn't open iommu|/dev/vfio|/dev/accel"
                "|neuron core(s) not available|is already in use by|_nc_busy|could not open the nd",
                r"Device acquire failed|Device already acquired|synDeviceAlreadyAcquired|Failed to initialize the "
                r"HCCP process|TPU is already in use|libtpu\.so (?:is )?already in used? by|(?:/dev/vfio"
                r"|/dev/accel)\S*.*(?:busy|Couldn't open iommu group)|Neuron Core\(s\) not available"
                r"|\bnd\d+ nc\d+ is already in use|NRT_EXEC_NC_BUSY|Could not open the nd\d",
            ),
        ),
        confidence="medium",
        way="accelerator",
    ),
    Rule(
        "no-gpu-visible",
        "{who} sees no accelerator",
        (
            Sign(
                "no-accelerator-found",
                "hiperrornodevice|/dev/kfd|\"render\" group|'render' group|rock module|dcmi module|no xpu device"
                "|_error_device_not_found|determine neuron driver|no neuron device|no hpu|aclrtsetdevice",
                r"hipErrorNoDevice|/dev/kfd\b.*(?:denied|No such file)|not (?:a )?member of [\"']render[\"'] group"
                r"|ROCk module is NOT loaded|dcmi module initialize failed|No XPU devices? (?:are|is) available"
                r"|\b(?:UR_RESULT|ZE_RESULT|PI)_ERROR_DEVICE_NOT_FOUND\b|Unable to determine Neuron Driver version"
                r"|\bno neuron devices? found|No HPU devices?\b|aclrtSetDevice\b.*error code is 507033\b",
            ),
        ),
        confidence="medium",
        way="accelerator",
    ),
    Rule(
        "mismatched-collectives",
        "the ranks called HCCL with different arguments",
        (
            Sign(
                "hccl-differs",
                "collective communication are inconsistent|parameter inconsistent|inconsistent between ranks",
                r"\bEI0005\b|arguments for collective communication are inconsistent",
            ),
        ),
        tier=Tier.NETWORK,
    ),
    Rule(
        "rdma-peer-unreachable",
        "an NPU's RoCE messages to another one were not answered",
        (Sign("hccl-cqe", "roce cqe|error cqe", r"Error ROCE CQE|\bEI0013\b|hns_roce\S* : error cqe status"),),
        tier=Tier.NETWORK,
        confidence="medium",
        way="ascend",
    ),
    Rule(
        "port-in-use",
        "a port that HCCL wants on this host is taken: an earlier run is not gone, or two jobs use one range",
        (Sign("hccl-port-taken", "ip address and port have been bound"),),
        way="ascend",
    ),
    Rule(
        "ranks-missing",
        "HCCL's ranks did not all come to meet in time",
        (Sign("hccl-topology", "topology_detect|topology detect", r"Topology[_ ]Detect\w*.*(?:fail|time)|\bEI0015\b"),),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "rank-behind",
        "HCCL waited for another rank, which sent nothing in time: that rank is late, stuck, or gone",
        (
            Sign(
                "hccl-waits",
                "getting socket times out|notify register|notify wait|get_socket",
                r"Getting socket times out|Notify register (?:times out|has not received)"
                r"|\bnotify wait\b.*time|Communication_Error_Get_Socket",
            ),
        ),
        tier=Tier.SYMPTOM,
        confidence="medium",
        way="ascend",
    ),
    Rule(
        "collective-stall-uniform",
        "work on an NPU did not finish in time; one rank's lines alone do not tell who was late",
        (
            Sign(
                "npu-stalled",
                "stream synchronize timeout|stream sync timeout|task timeout|runtime result =|error code is",
                r"\bStream synchroni[sz]e timeout|stream sync timeout|\bhccl\b.{0,20} task timeout"
                r"|reason=\[task timeout\]|(?:runtime result =|error code is) ?(?:107020|507046)\b",
            ),
        ),
        unless=("accelerator-memory", "accelerator-fault"),
        tier=Tier.ABORT,
        confidence="low",
    ),
    Rule(
        "insufficient-evidence",
        "an accelerator's runtime returned an error ({line}), not what is wrong",
        ("accelerator-failed",),
        tier=Tier.WRAPPER,
        confidence="medium",
        way="accelerator",
    ),
)

SIGNS = (
    Sign(
        "no-nvswitch",
        "nothing_to_do|nothing to do|no nvswitch|nvswitch not|pre-nvl",
        r"NOTHING_TO_DO|no NVSwitch|NVSwitch(?:es)? (?:is |are )?not (?:found|present|detected)",
    ),
    Sign("ib-no-device-text", "net/ib|ib devices|ibstat", None, keep=4),
    Sign("cuda-error", "cuda error|cuda failure|cublas|cudnn|acceleratorerror", None),
    Sign(
        "accelerator-failed",
        "hip error|npu function error|npu error|acl stream|hccl|api failed|synstatus|synapse error"
        "|backend failed|native api|nrt_|nrt:|tdrv:|neuroncores|_error_|oneccl",
        r"HIP error: |\b(?:NPU|OPS|HCCL)\b(?: \w+)? error: |ACL stream synchronize failed|ERR\d{5} \w+ call"
        r"|\bsynStatus\b|synapse error: \d|\b(?:UR|level_zero) backend failed|Native API failed"
        r"|\bnrt_\w+ (?:status=[1-9]|failed)|\b(?:NRT|TDRV):\w+ .*(?:fail|not|err)"
        r"|Nrt::\w+ failed|\b(?:UR_RESULT|ZE_RESULT|PI)_ERROR_\w+|oneCCL: .*EXCEPTION",
    ),
)
