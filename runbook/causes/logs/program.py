"""The program and how it was started: its own errors, its arguments, its environment."""

from __future__ import annotations

from runbook.causes.logs.sign import Rule, Sign, Tier

ORDINARY = (
    "ImportError|ModuleNotFoundError|FileNotFoundError|NotADirectoryError|IsADirectoryError|FileExistsError|PermissionError|KeyError|IndexError|TypeError|"
    "ValueError|AttributeError|AssertionError|SyntaxError|IndentationError|NameError|UnboundLocalError|ZeroDivisionError|NotImplementedError|OverflowError|"
    "UnicodeDecodeError|JSONDecodeError|RecursionError|StopIteration|LookupError|ArithmeticError|FloatingPointError|EOFError|UnpicklingError|YAMLError|"
    "ParserError|ScannerError|ConfigAttributeError|ValidationError|MisconfigurationException|ConfigKeyError|TabError|MemoryError|BrokenProcessPool"
)
WRAPPERS = (
    r"ChildFailedError|ProcessRaisedException|ProcessExitedException|SignalException|CalledProcessError|SystemExit|DistBackendError|DistNetworkError|"
    r"DistStoreError|DistError|Rendezvous\w*|ConnectionError|TimeoutError|ConnectionRefusedError|ConnectionResetError|BrokenPipeError|NCCLError|"
    r"NcclError|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage|ncclRemoteError|HorovodInternalError|RayTaskError|RayActorError|"
    r"ActorDiedError|WorkerCrashedError|ChildProcessError|XlaRuntimeError|JaxRuntimeError|KeyboardInterrupt|OSError|socket\.\w+|gaierror|InternalError|UnavailableError"
)

RULES = (
    Rule(
        "program-error",
        "the program itself failed on {who}: {type}: {message}",
        ("ordinary-error",),
        tier=Tier.PROGRAM,
    ),
    Rule(
        "program-error",
        "the program itself failed on {who}: {what}",
        (
            Sign(
                "python-cannot",
                "can't open file|can't find|no such file or directory|error: unrecognized|error: the following arguments|syntaxerror|unrecognized arguments",
                r"can't open file (?P<what>.*)|python\S*: can't find .*|error: (?P<what2>(?:unrecognized arguments|the following arguments are required)(?!.*local[-_]rank).*)|^(?:\S*/)?(?:python\S*|bash|sh|zsh|cat|cd|ls|cp|source)\b.*: No such file or directory$",
            ),
        ),
        tier=Tier.PROGRAM,
    ),
    Rule(
        "program-error",
        "the program raised {type}: {message}",
        ("other-error",),
        unless=("nccl-failed", "failed-collective", "cuda-error"),
        tier=Tier.ABORT,
        confidence="medium",
    ),
    Rule(
        "program-error",
        "a worker left with exit code 2, which Python uses for a script that it cannot open and argparse for arguments that it does not know",
        ("exit-two",),
        tier=Tier.ABORT,
        confidence="medium",
    ),
    Rule(
        "local-rank-arg-mismatch",
        "the launcher passes {given}, which the script does not know: torch 2 writes --local-rank, 1.x wrote --local_rank",
        (
            Sign("local-rank-rejected", "local-rank|local_rank", r"(?:unrecognized arguments|no such option|unknown (?:option|flag|argument)\w*)\W.*?(?P<given>--local[-_]rank\S*)|Unknown (?:command line )?flag 'local[-_]rank"),
        ),
        remedy="start with torchrun and read os.environ['LOCAL_RANK'], or accept both spellings: add_argument('--local-rank', '--local_rank', type=int)",
    ),
    Rule(
        "local-rank-arg-mismatch",
        "the script's own parser refused its arguments; it knows --local-rank or --local_rank, and the launcher passes the other spelling",
        (Sign("usage-names-local-rank", "local-rank|local_rank", r"^\s*(?:usage:.*|\[.*)--local[-_]rank\b"),),
        needs=("exit-two",),
        confidence="medium",
    ),
    Rule(
        "not-launched-with-launcher",
        "{variable} is not set: the program was started without torchrun, srun or mpirun, or their variables did not reach it",
        (
            Sign(
                "variable-missing",
                "arguments are required|expected, but not set|keyerror: |missing required environment|environment variable|no module named 'mpi|no module named mpi|mpi discovery|mpi_discovery",
                r"environment variable (?P<variable>\w+) expected, but not set|KeyError: ['\"](?P<variable2>(?:LOCAL_|GLOBAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_ADDR|MASTER_PORT|SLURM_\w+|OMPI_COMM_WORLD_\w+)['\"]"
                r"|No module named '?mpi4py|arguments are required:.*--local[-_]rank|(?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|coordinator_address)\b.{0,40}(?:is not set|not set in|must be (?:set|defined|specified)|not defined|not found in environment)",
            ),
        ),
    ),
    Rule(
        "distributed-api-misuse",
        "the program misuses torch.distributed: {message}",
        (
            Sign(
                "api-misused",
                "finished reduction|re-initialize cuda|default process group|has not been initialized|bootstrapping phase|before init|not been initialized|preamble|process group has|twice|invalid process group|freeze_support|should be waited|op.preamble"
                "|not part of group|group is not|invalid device|already been destroyed|already initialized|initialize() must be|distributed.initialize should|be called once|tensor-likes|tensors must be",
                r"(?P<message>initialize the default process group twice|Default process group has(?: not| n't)? ?(?:not )?been initialized[^.]*|finished its bootstrapping phase|Expected to have finished reduction in the prior iteration|attempt has been made to start a new process"
                r"|op\.preamble\.length <= op\.nbytes|Invalid process group specified|process group .*(?:destroyed|not initialized)|distributed\.initialize should only be called once|must be called before any JAX"
                r"|Tensors must be (?:CUDA and dense|contiguous)|freeze_support\(\)|Cannot re-initialize CUDA in forked subprocess)",
            ),
        ),
        unless=("sizes-differ", "told-different-sizes"),
    ),
    Rule(
        "environment-not-activated",
        "{command} is not there in the shell that ran: another environment than the one you type in",
        (
            Sign(
                "command-not-found",
                "properly configured to use|conda environment|environmentnamenotfound|command not found|not recognized as|: not found|no such file or directory|no module named|not found in path|executable file not found|failed to find executable|execvp",
                r"has not been properly configured to use .conda activate|Could not find conda environment|EnvironmentNameNotFound|(?:^|[\s:])(?P<command>torchrun|python[\d.]*|conda|deepspeed|accelerate|pip\d?|mpirun|nvcc|jupyter|horovodrun|colossalai|ds_report|source|module)['\"]?: (?:command )?not found|not recognized as (?:an internal|the name)|'(?P<command2>torchrun|python|conda)' is not recognized"
                r"|No module named ['\"]?torch(?:['\"]|\.distributed|\.distributed\.\w+|$)|(?:env|execvp\S*|exec|srun|bash): .*(?:torchrun|python[\d.]*|conda|deepspeed)['\"]?: No such file|\"(?P<command3>torchrun|python\d?)\": executable file not found",
            ),
        ),
        remedy="name the interpreter by its full path (/opt/venv/bin/python -m torch.distributed.run …) or activate the environment in the command that the remote, sudo or batch shell runs",
    ),
    Rule(
        "environment-not-activated",
        "no GPU is seen through the remote shell: the environment of the interactive one is missing there",
        ("no-gpus-found",),
        needs=("through-remote-shell",),
        confidence="medium",
    ),
    Rule(
        "launcher-tool-missing",
        "{tool} is not installed where the launcher needs it",
        (
            Sign(
                "tool-not-found",
                "ninja|'hostname|pdsh|orted|etcd|prted|mpirun|mpiexec|not installed|srun|mvapich|impi|openmpi|hydra",
                r"(?:^|[\s'\"`/:])(?P<tool>pdsh|orted|prted|mpirun|mpiexec|etcd|srun|hydra_pmi_proxy|ninja)['\"`]?: (?:command )?not found|(?P<tool2>pdsh|mpirun|etcd|srun|orted)\b.{0,40}(?:is not installed|not installed|could not be found|cannot be found|not found)"
                r"|orted: .*No such file|No such file or directory: ['\"](?P<tool5>pdsh|mpirun|mpiexec|srun|orted|ssh|ninja|hostname)['\"]|No module named ['\"]?(?P<tool3>etcd|mpi4py\.futures|pdsh)|launcher ['\"]?(?P<tool4>pdsh|\w*mpi\w*)['\"]? not installed",
            ),
        ),
    ),
)  # fmt: skip

SIGNS = (
    Sign(
        "ordinary-error",
        "error|exception|unexpectedly",
        rf'^(?:E +|.*"message": "|.*\|\s)?(?:[a-z_]\w*\.)*(?P<type>{ORDINARY})(?::\s?(?P<message>.{{0,160}}))?$|"message": "(?P<type2>{ORDINARY}): (?P<message2>[^"]{{0,160}})',
    ),
    Sign(
        "other-error",
        "error|exception",
        rf"^(?:(?:[a-z_]\w*\.)*)(?P<type>(?!(?:{WRAPPERS}|{ORDINARY})\b)[A-Z]\w*(?:Error|Exception)): (?P<message>(?!NCCL error|CUDA error|Distributed package|\[.*gloo|Socket Timeout|Timeout waiting|Timed out|Connection |Gloo ).{{0,160}})",
    ),
    Sign("exception", "error|exception", r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: .*)?$"),
    Sign("traceback", "traceback (most recent call last)"),
    Sign("exit-two", "exitcode|exit status|exit code|return code", r"exitcode\s*:? +2\b|(?:exit status|exit code|return code)[ =:]+2\b"),
    Sign("through-remote-shell", "pdsh|ssh |permanently added|mpirun|sudo ", r"\bpdsh\b|Permanently added|\bssh [-\w@]|\bsudo \w"),
)  # fmt: skip
