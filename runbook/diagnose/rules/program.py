"""The program and how it was started: its own errors, its arguments, its environment."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

ORDINARY = (
    "ImportError|ModuleNotFoundError|FileNotFoundError|NotADirectoryError|IsADirectoryError|FileExistsError"
    "|PermissionError|KeyError|IndexError|TypeError|ValueError|AttributeError|AssertionError|SyntaxError"
    "|IndentationError|NameError|UnboundLocalError|ZeroDivisionError|NotImplementedError|OverflowError"
    "|UnicodeDecodeError|JSONDecodeError|RecursionError|StopIteration|LookupError|ArithmeticError|FloatingPointError"
    "|EOFError|UnpicklingError|YAMLError|ParserError|ScannerError|ConfigAttributeError|ValidationError"
    "|MisconfigurationException|ConfigKeyError|TabError|MemoryError|BrokenProcessPool"
)
WRAPPERS = (
    r"ChildFailedError|ProcessRaisedException|ProcessExitedException|SignalException|CalledProcessError|SystemExit"
    r"|DistBackendError|DistNetworkError|DistStoreError|DistError|Rendezvous\w*|ConnectionError|TimeoutError"
    r"|ConnectionRefusedError|ConnectionResetError|BrokenPipeError|NCCLError|NcclError|ncclSystemError"
    r"|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage|ncclRemoteError|HorovodInternalError|RayTaskError"
    r"|RayActorError|ActorDiedError|WorkerCrashedError|ChildProcessError|XlaRuntimeError|JaxRuntimeError"
    r"|KeyboardInterrupt|OSError|socket\.\w+|gaierror|InternalError|UnavailableError|UnexpectedStatusException"
    r"|TrainingFailedError|AlgorithmError|ExecuteUserScriptError|CommClosedError"
)
COMMANDS = (
    r"torchrun|python[\d.]*|conda|mamba|deepspeed|accelerate|pip\d?|uv|poetry|nvcc|jupyter|horovodrun|colossalai"
    r"|ds_report|source|module|ray|vllm|sglang|lightning|fairseq-\w+|nvidia-smi"
)
TOOLS = (
    r"pdsh|orted|prted|mpirun|mpiexec(?:\.hydra)?|etcd|srun|sbatch|hydra_pmi_proxy|ninja|sshpass|ssh|rsh|kubectl"
    r"|docker|clush|dsh"
)
NOT_FOUND_ABROAD = (
    r"Kommando nicht gefunden|Befehl nicht gefunden|commande introuvable|orden no encontrada|comando no encontrado"
    r"|comando não encontrado|comando non trovato|команда не найдена|未找到命令|コマンドが見つかりません"
    r"|명령어를 찾을 수 없습니다"
)

LESSER = (
    r"(?:(?-i:\b(?:WARN|WARNING|INFO|DEBUG|NOTICE|TRACE)\b|[Ww]arning:|(?:\[|^)[WI](?:\d| \S)"
    r"|\b[WI] (?:tensorflow|external|torch)\b)|<(?:warn|info|debug)>|level\"?[=:] ?\"?(?:info|debug|warn)"
    r"|\b(?:ignor|skipp|suppress|retry)\w*)"
)
"""Lines of a level at which a program goes on."""

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
                "python|can't open file|can't find|no such file or directory|error: |syntaxerror"
                "|unrecognized arguments",
                r"can't open file (?P<what>.*)|python\S*: (?:can't find |No module named |Error while finding "
                r"module).*|error: (?P<what2>(?:unrecognized arguments|the following arguments are required"
                r"|ambiguous option|argument \S+: (?:invalid|expected))(?!.*local[-_]rank).*)|^(?:\S*/)?(?:python\S*"
                r"|bash|sh|zsh|cat|cd|ls|cp|source)\b.*: No such file or directory$",
            ),
        ),
        tier=Tier.PROGRAM,
    ),
    Rule(
        "program-error",
        "the program raised {type}: {message}",
        (
            "other-error",
            Sign(
                "oddly-named",
                "errors.|exceptions.",
                rf"^(?!.*{LESSER}.*: )(?:.*[\])>:|] +)?(?:[a-z_]\w*\.)*_?(?:errors"
                rf"|exceptions)\.(?P<type>(?!\w*(?:Error|Exception)\b)(?-i:[A-Z])\w+): (?P<message>.{{0,160}})",
            ),
        ),
        unless=("nccl-failed", "failed-collective", "cuda-error", "accelerator-failed"),
        tier=Tier.ABORT,
        confidence="medium",
    ),
    Rule(
        "program-error",
        "the program wants something from {what}, which this machine does not reach",
        (
            Sign(
                "outside-unreached",
                "httpsconnectionpool|couldn't connect to|can't load the configuration|localentrynotfounderror"
                "|cannot reach",
                rf"^(?!.*{LESSER})(?:.*[\])>:|] +)?(?:[a-z_]\w*\.)*(?:ConnectionError|ConnectTimeout"
                r"|ReadTimeout|SSLError|ProxyError|MaxRetryError|OSError"
                r"|LocalEntryNotFoundError)\b.*?(?:HTTPSConnectionPool\(host='|https://)(?P<what>[\w.-]+)",
            ),
        ),
        tier=Tier.ABORT,
        confidence="medium",
        way="offline",
    ),
    Rule(
        "program-error",
        "a worker left with exit code 2, which Python uses for a script that it cannot open and argparse for "
        "arguments that it does not know",
        ("exit-two",),
        tier=Tier.ABORT,
        confidence="medium",
    ),
    Rule(
        "local-rank-arg-mismatch",
        "the launcher passes {given}, which the script does not know: torch 2 writes --local-rank, 1.x wrote "
        "--local_rank",
        (
            Sign(
                "local-rank-rejected",
                "local-rank|local_rank",
                r"(?:unrecognized (?:arguments|options?)|no such option|unknown (?:option|flag|argument)\w*"
                r"|unexpected argument\w*|not used by the HfArgumentParser|ambiguous option|LexerNoViableAlt\w*"
                r"|Could not override|got an unexpected \w+|invalid option)\W.*?(?P<given>[-–—]{0,2}local[-_]rank\S*)"
                r"|Unknown (?:command line )?flag 'local[-_]rank",
            ),
        ),
    ),
    Rule(
        "local-rank-arg-mismatch",
        "the script's own parser refused its arguments; it knows --local-rank or --local_rank, and the "
        "launcher passes the other spelling",
        (Sign("usage-names-local-rank", "local-rank|local_rank", r"^\s*(?:usage:.*|\[.*)--local[-_]rank\b"),),
        needs=("exit-two",),
        confidence="medium",
    ),
    Rule(
        "not-launched-with-launcher",
        "{variable} is not set: the program was started without torchrun, srun or mpirun, or their variables "
        "did not reach it",
        (
            Sign(
                "variable-missing",
                "arguments are required|expected, but not set|keyerror: |missing required environment"
                "|environment variable|no module named 'mpi|no module named mpi|mpi discovery|mpi_discovery|not set"
                "|must be|not found in environment|not defined|coordinator_address|environ.get(|command line parameter",
                r"requires integer command line parameter --local_rank|environment variable (?P<variable>\w+) "
                r"expected, but not set|KeyError: ['\"](?P<variable2>(?:LOCAL_|GLOBAL_|NODE_|GROUP_)?RANK"
                r"|(?:LOCAL_)?WORLD_SIZE|MASTER_ADDR|MASTER_PORT|SLURM_\w+|OMPI_COMM_WORLD_\w+)['\"]"
                r"|No module named '?mpi4py|arguments are required:.*--local[-_]rank|(?:RANK|WORLD_SIZE|MASTER_ADDR"
                r"|MASTER_PORT|coordinator_address)\b.{0,40}(?:(?:is|was|were) not set|not set in"
                r"|(?:must|should) be (?:set|defined|specified)|not defined|not found in environment|is missing"
                r"|is undefined)|(?:coordinator_address|Number of processes|process id of the current process) "
                r"(?:should|must) be defined|^\s*\S*rank\S* = int\(os\.(?:environ\.get"
                r"|getenv)\(['\"](?P<variable3>(?:LOCAL_)?RANK|WORLD_SIZE)['\"]\)\)",
            ),
        ),
    ),
    Rule(
        "distributed-api-misuse",
        "the program misuses torch.distributed: {message}",
        (
            Sign(
                "api-misused",
                "finished reduction|attempt has been made|re-initialize cuda|default process group"
                "|has not been initialized|bootstrapping phase|before init|not been initialized|preamble|process group"
                "|twice|freeze_support|should be waited|op.preamble|variable ready only once|no backend type"
                "|more than once|not part of group|group is not|invalid device|already been destroyed"
                "|already initialized|initialize() must be|distributed.initialize should|be called once|tensor-likes"
                "|tensors must be|yet initialized|output_device arguments|cannot use reduceop|require a gradient"
                "|hvd.init|must be called before|same communicator|is not initialized",
                r"(?P<message>initialize the default process group twice|Default process group (?:has(?: not"
                r"| n't)? ?(?:not )?been|is not) initialized[^.]*|finished its bootstrapping phase"
                r"|Expected to have finished reduction in the prior iteration|attempt has been made to start a new "
                r"process|op\.preamble\.length <= op\.nbytes|Invalid process group specified|process group "
                r".*(?:destroyed|not initialized|already (?:been )?initialized)|distributed\.initialize should only "
                r"be called once|must be called before any JAX|Expected to mark a variable ready only once"
                r"|No backend type associated with device type|Tensors must be (?:CUDA and dense|contiguous)"
                r"|freeze_support\(\)|Cannot re-initialize CUDA in forked subprocess|is not needed when a module "
                r"doesn't have any parameters that require|(?:Horovod|DeepSpeed|Process group|torch\.distributed"
                r"|Distributed package|communicator)\b.{0,20}(?:has not been|is not|not) (?:yet )?initialized"
                r"|device_ids and output_device arguments only work|Cannot use ReduceOp|cannot be initialized more "
                r"than once|\w+ parallel group is not initialized)",
            ),
        ),
        unless=("sizes-differ", "told-different-sizes"),
    ),
    Rule(
        "distributed-api-misuse",
        "CUDA cannot be used by {who}: most often it was used before the process was forked",
        (
            Sign(
                "cuda-after-fork",
                "initialization error|stable environment for the notebook",
                r"(?:CUDA error|Cuda failure)\W{1,3}initialization error"
                r"|verifying a stable environment for the notebook",
            ),
        ),
        tier=Tier.PROGRAM,
        confidence="medium",
        way="fork",
    ),
    Rule(
        "environment-not-activated",
        "{command} is not there in the shell that ran: another environment than the one you type in",
        (
            Sign(
                "command-not-found",
                "properly configured to use|failed to spawn|conda environment|environmentnamenotfound"
                "|environmentlocationnotfound|command not found|not recognized as|: not found"
                "|no such file or directory|not found in path|executable file not found"
                "|failed to find executable|execv|conda init|unknown command|find the specified executable"
                "|modulefile|module(s) are unknown"
                "|nicht gefunden|introuvable|pas reconnu|no encontrada|找到命令|não encontrado|команда|内部或外部命令"
                "|konnte nicht gefunden|non trovato",
                r"has not been properly configured to use .conda activate|Could not find conda environment"
                r"|Environment(?:Name|Location)NotFound|Run 'conda init' before"
                rf"|(?:^|[\s:/])(?P<command>{COMMANDS})['\"’]?: (?:command )?(?:not found|{NOT_FOUND_ABROAD})"
                rf"|command not found: (?P<command4>{COMMANDS})\b"
                rf"|Unknown command:? '?(?P<command5>{COMMANDS})\b"
                rf"|['\"](?P<command2>{COMMANDS})['\"] (?:is not recognized|不是内部或外部命令|.*konnte nicht gefunden"
                rf"|n'est pas reconnu)|(?P<command6>{COMMANDS})'? is not recognized as (?:the name|a name)"
                r"|not recognized as (?:an internal|the name)"
                r"|(?:env|execvp\S*|exec|srun|bash|failed to (?:run command|execute)"
                rf"|xargs)\b.*?(?!(?<=/)python)\b(?P<command7>{COMMANDS})['\"’]?:? \(?No such file"
                rf"|\"(?P<command3>{COMMANDS})\": executable file not found"
                r"|slurmstepd: error: execve\(\): (?!/\S*python)(?P<command8>[\w.-]+): No such file"
                r"|was unable to find the specified executable"
                rf"|failed to spawn:? [`'\"]?(?P<command9>{COMMANDS})\b"
                r"|following module\(s\) are unknown|Unable to locate a modulefile"
                r"|(?:Failed|unable) to (?:load|find) module ",
            ),
        ),
    ),
    Rule(
        "environment-not-activated",
        "{command} is not there in the shell that ran",
        (
            Sign(
                "some-command-not-found",
                "command not found",
                r"(?<![\w.+-])(?P<command>[\w.+-]+): command not found|command not found: (?P<command2>\S+)",
            ),
        ),
        unless=("tool-not-found", "command-not-found"),
        tier=Tier.ABORT,
        confidence="medium",
    ),
    Rule(
        "environment-not-activated",
        "{module} is not there for the Python that the remote shell finds: another environment than the one "
        "you type in",
        (
            "no-torch",
            Sign(
                "no-launcher-module",
                "no module named",
                r"No module named ['\"]?(?P<module>deepspeed|accelerate|horovod|lightning|pytorch_lightning"
                r"|transformers|ray|vllm|sglang|colossalai|jax)\b",
            ),
        ),
        needs=("through-remote-shell",),
    ),
    Rule(
        "torch-missing",
        "the Python that ran has no torch: it is not installed there, or another environment was meant",
        (
            Sign(
                "no-torch",
                "no module named",
                r"No module named ['\"]?(?P<module>torch)(?:['\"]|\.distributed(?!\.\w*(?:_|elastic\.\w+\.\w+))|$|\))",
            ),
        ),
        unless=("through-remote-shell",),
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
                "ninja|'hostname|pdsh|orted|etcd|prted|mpirun|mpiexec|not installed|srun|mvapich|impi|openmpi|hydra"
                "|command not found|: not found|no such file|sshpass|plm_rsh_agent|neither mpi|no module named",
                rf"(?:^|[\s'\"`/:])(?P<tool>{TOOLS})['\"`’]?: (?:command )?(?:not found|{NOT_FOUND_ABROAD})"
                rf"|command not found: (?P<tool6>{TOOLS})\b|(?P<tool2>{TOOLS})\b(?![./]).{{0,40}}(?:is not installed"
                rf"|not installed|could not be found|cannot be found|not found)|(?:^|/)(?P<tool7>{TOOLS}): .*No such "
                rf"file|No such file or directory: ['\"](?P<tool5>{TOOLS}|hostname)['\"]|No module named "
                r"['\"]?(?P<tool3>etcd|mpi4py\.futures|pdsh)|launcher ['\"]?(?P<tool4>pdsh|\w*mpi\w*)['\"]? not "
                r"installed|you must install the (?P<tool8>sshpass)|(?P<tool9>plm_rsh_agent): |Neither MPI nor Gloo "
                r"support has been built|(?P<tool10>Ninja) is required|Failed to import (?P<tool11>\S*etcd)",
            ),
        ),
    ),
)

SIGNS = (
    Sign(
        "ordinary-error",
        "error|exception|unexpectedly|brokenprocesspool",
        rf'^(?!.*{LESSER}.*(?:Error|Exception))(?:E +|.*"message": "|ErrorMessage "|.*\|\s'
        rf"|.*[\])>:] +)?(?:[a-z_]\w*\.)*(?P<type>{ORDINARY})(?:: ?(?P<message>.{{0,160}}).*)?$"
        rf'|"message": "(?P<type2>{ORDINARY}): (?P<message2>[^"]{{0,160}})',
    ),
    Sign(
        "other-error",
        "error|exception",
        rf"^(?!.*{LESSER}.*(?:Error|Exception))(?:.*[\])>:|] +)?(?:(?:[a-z_]\w*\.)*)(?P<type>(?-i:OSError)(?!: "
        r"(?:\[(?:Errno|WinError) (?:9[7-9]|10\d|11[0-5]|32|100\d\d)\b|.*(?:socket|connect|bind|listen|address"
        rf"|network|host)))|(?!(?:{WRAPPERS}|UnknownHostException|{ORDINARY})\b)(?-i:_?[A-Z]\w*Error"
        r"|(?:[A-Z]\w*)?Exception)): (?P<message>(?!NCCL |CUDA error|ProcessGroup|\[(?:PG|Rank|\d)"
        r"|Distributed package|\[.*gloo|Socket Timeout|Timeout waiting|Timed out|Connection |Gloo |Engine process"
        r"|Engine core|Worker |WorkerProc |EngineCore|.*\bsee (?:the )?(?:root cause|stack ?trace|inner exception"
        rf"|logs?\b|above)).{{0,160}})",
    ),
    Sign("exception", "error|exception", r"^(?:[A-Za-z_]\w*\.)*(?-i:[A-Z]\w*Error|(?:[A-Z]\w*)?Exception)(?:: .*)?$"),
    Sign("traceback", "traceback (most recent call last)"),
    Sign("ignored-exception", "exception ignored in", r"^Exception ignored in\b"),
    Sign(
        "exit-two",
        "exitcode|exit status|exit code|return code",
        r"exitcode\s*(?:: +|(?<= ))2\b|(?:exit status|exit code|return code)[ =:]+2\b",
    ),
    Sign(
        "through-remote-shell",
        "pdsh|ssh |permanently added|mpirun|sudo |clush|ansible",
        r"\bpdsh\b|Permanently added|\bssh [-\w@]|\bsudo \w|\bclush\b",
    ),
)
