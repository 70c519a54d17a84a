"""How far a run got by its own lines, and lines that look like errors and never are. A log without a failure is healthy
only if a line shows that the run went on."""

from __future__ import annotations

import re
from enum import IntEnum


class Reached(IntEnum):
    """The furthest state that any line of the logs shows."""

    NOTHING = 0  # banners, settings, the words of a program
    SETUP = 1  # ranks met, a network was chosen, a service runs
    PROGRESS = 2  # steps, results, an end


NONE = rb"[\"']?\s*[=:]\s*[\"']?(?:0|false|none|null|no)\b"
BAD = (
    rb"^(?!.*\b(?:(?:fail\w*|errors?|exceptions?)\b(?=\W{0,3}[=:])(?!"
    + NONE
    + rb")|(?:fail\w*|exception)\b(?!\W{0,3}[=:])|abort\w*|cancel+ed|kill\w*|timed out|time-?out (?:after|waiting)"
    rb"|terminat\w+|waiting|will|not (?:yet )?(?:done|finish\w*|complete\w*)))"
)
"""Parts of lines that show no progress, whatever else they say."""

PROGRESS = re.compile(
    BAD + rb"(?:.*?(?:"
    # an end
    rb"\b(?:done|finished|succeeded|exiting)\b"
    rb"|(?<!barrier )(?<!init )\b(?:complete[ds]?|successful(?:ly)?"
    rb"|success)\b(?! (?:connected|initiali[sz]ed|store|loaded|start\w*))"
    rb"|\bexit(?:ed)?\b.{0,16}\b(?:code|status)?[ =:]*0\b"
    rb"|\bcode: 0\b|\bsaved?\b.{0,20}\b(?:checkpoint|model|to)\b|\bgoodbye\b"
    rb"|destroy_process_group\(\) was not called|has NOT been destroyed before|destroy complete|\bfailed=0\b"
    rb"|\b\d+ passed\b"
    # a result
    rb"|all_?reduce ok|avg bus bandwidth|\b\d+ packets transmitted"
    rb"|\b(?:accuracy|acc|perplexity|ppl|throughput|\w+[ _](?:error|err|acc|loss))\W{0,4}\d"
    rb"|\b(?:[GMT]B/s|TFLOPS?|examples/s|images/s|img/s|ms/step)\b"
    rb"|(?:^|\s)\d+\s+\d+\s+[a-z]\w*\s+(?:\w+\s+)?-?\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+\b"
    # on the way
    rb"|\b\d+%\s?\||\[\d+:\d\d<|\bin the forward pass\b"
    rb"|(?<!-)\b(?:batch|global_step|iter(?:ation)?|step|epoch)\W{0,5}\d|\"(?:step|epoch|loss)\""
    rb"))",
    re.IGNORECASE | re.DOTALL,
)
"""A line of a run that trained, measured or came to its end."""

TESTS_PASSED = re.compile(
    BAD + rb"(?:=* *\d+ passed\b.* in [\d.]+ ?m?s|OK(?: \((?:skipped|expected failures)=\d+.*\))?\s*$"
    rb"|\[  PASSED  \] \d+ test)",
    re.IGNORECASE,
)
"""A test suite says at its end that all passed: what they printed before was on purpose."""

ENDED = re.compile(
    BAD + rb"(?:.*?\b(?:training|run|job|benchmark|evaluation|everything|all|program)\b.{0,24}\b(?:done|finished"
    rb"|complete[ds]?|succeeded)\b|.*?\bexited with (?:code|status) 0\b|.*?'train_runtime': \d"
    rb"|.*?\bTrainer\.fit\W{1,3}stopped\b)",
    re.IGNORECASE | re.DOTALL,
)
"""A run says that it has ended well."""

SETUP = re.compile(
    rb"\A(?:.*?(?:"
    # ranks met
    rb"init complete|all ranks joined|completed store-based barrier|all \w+ processes registered"
    rb"|process(?:es)? registered|\bconnected (?:to|all|with|after)\b|\bsuccessfully connected\b"
    rb"|\b(?:I am|rank|process|worker|task|node) \d+ ?(?:of|out of|/) ?\d+"
    rb"|hostname of the client socket cannot be retrieved|connection established|authentication succeeded"
    rb"|accepted (?:publickey|password|connection)"
    # NCCL and its like are past their bootstrap
    rb"|\busing (?:internal )?network\b|\bNET/\w+ ?: Using \[?\d|\bNET : Using interface\b"
    rb"|\bvia (?:P2P|SHM|NET|direct)|\b(?:Ring|Channel|Tree)s? \d+|\bconnected all\b|\bNVLS comm"
    rb"|peer access already|\(0x2c0\)|MNNVL|\btrees?\b (?:enabled|disabled)"
    rb"|running collective|collective backend"
    # a service runs, or a system's own log
    rb"|\b(?:startup complete|server is ready|ready to serve|listening (?:on|at)|running on http"
    rb"|uvicorn running)|\b(?:started|ready|running)\b|\bkernel: |\bsystemd\[\d+\]|\bNVRM\b"
    rb"))",
    re.IGNORECASE | re.DOTALL,
)
"""A line of a run beyond its setup."""


REACHED_KEYS = tuple(
    "done|finish|succe|exit|complete|code: |save|goodbye|destroy|failed=|passed|reduce ok|bandwidth"
    "|packets transmitted|acc|perplexity|ppl|throughput|error|err |_err|loss|b/s|flop|examples/s"
    "|images/s|img/s|ms/step|float|half|double|int|%|forward pass|batch|step|iter|epoch|joined|barrier"
    "|registered|connect|i am |rank|process|worker|task|node|hostname|accepted|using|via|ring|channel|tree"
    "|nvls|peer access|x2c|mnnvl|collective|ready|listen|running|started|kernel|systemd|nvrm".split("|")
)
"""Literals of these: a line without any of them shows no progress."""


def reached(line: bytes, goes_on: bool) -> Reached:
    """How far the run was that printed this line; `goes_on`: it is about training."""
    if (goes_on and b"has connected to" not in line) or PROGRESS.match(line):
        return Reached.PROGRESS
    return Reached.SETUP if SETUP.match(line) else Reached.NOTHING


NOISE = re.compile(
    r"Setting OMP_NUM_THREADS|Redirects are currently not supported|hostname of the client socket cannot be retrieved"
    r"|To enable traceback see|Sending process \d+ closing signal SIGTERM|\(errno: 97 - |errno: 97\b"
    r"|gai error: -9\b|gai error: -6\b"
    r"|No plugin found|libnccl-(?:net|tuner|profiler)|ncclNetPlugin_v\d|ncclCollNetPlugin_v\d|ncclTunerPlugin"
    r"|Failed to open libibverbs|Plugin (?:load|name|path)|NET/Plugin"
    r"|NVLS multicast support is not available|(?:peermem|p2p).*detected invalid context|\(0x2c0\)"
    r"|peer access already enabled"
    r"|openib BTL|btl_openib|no preset parameters were found|There was an error initializing an OpenFabrics"
    r"|mca_btl_openib"
    r"|(?:Future|Deprecation|PendingDeprecation|Resource)Warning:|is deprecated|will be removed in"
    r"|destroy_process_group\(\) was not called|process group has NOT been destroyed before"
    r"|(?:can|may|could) (?:potentially )?(?:cause|lead to) a hang|Guessing device ID"
    r"|unable to resolve host \S+: Name or service|^\s*(?:raise|return|warnings\.warn|except|assert)\b"
    r"|^frame #\d+|^\s*@ +0x[0-9a-f]+ |^#\d+ +0x|AER: Corrected error|severity=Corrected"
    r"|TF-TRT Warning|Unable to register cu\w+ factory|oneDNN custom operations"
    r"|computation placer already registered|error_file:|error_handler:\{"
    r"|Failed to find (?:reverse (?!path)|hostname)|reverse DNS"
    r"|NCCL_(?!SOCKET_IFNAME|IB_HCA|IB_DISABLE set by environment to 0)\w+ set by environment"
    r"|INFO \S+:\d+ -> [07](?: \[|$)|mount.*already|<NO_OTHER_FAILURES>"
    r"|df: .*triton.*No such file|fatal: not a git repository|\berrors?(?:_count)? ?[:=] ?0\b"
    r"|: (?:rocm-smi|hipcc|git|lspci|lsmod|numactl)\W* (?:command )?not found|Unable to find hostfile"
    r"|^debconf: |can only test a child process"
    r"|bash: cannot set terminal process group|bash: no job control in this shell"
    r"|cannot find name for (?:group|user) ID|X11 connection rejected|prctl\(PR_SVE_GET_VL\) failed"
    r"|(?:set_mempolicy|mbind): Operation not permitted|\bkill: \(\d+\) - No such process"
    r"|\brm: cannot remove .*: No such file|\bmkdir: cannot create directory .*: File exists"
    r"|^wandb: |metrics exporter agent|Export metrics to agent failed|\] Read -1, expected \d+, errno = 1\b"
    r"|module verification failed: signature|^Unable to init server: Could not connect"
    r"|PMIX ERROR: .* in file \S*gds_|net_fastsocket\.cc:\d+ NCCL WARN (?:Cannot get incoming CPU"
    r"|Maximum retry reached)",
    re.IGNORECASE,
)

PROGRESS_KEYS = (
    *("loss", "epoch", "it/s]", "s/it]", "iter", "tokens/s", "samples/s", "step", "it/s,", "s/it,", "bus bandwidth"),
    *("finished", "completed", "succeeded", "has connected to", "startup complete", "ready to roll"),
    *("images/s", "img/s", "examples/s", "[batch="),
)
"""Literals of lines that show that a training goes on, or has ended."""

GOES_ON = re.compile(
    rb"^(?!.*\b(?:aborted|cancelled|canceled|failed|failure|exception|error:|killed|timed out|time-?out"
    rb"|packet loss|terminat\w+)\b)"
    rb"(?:.*(?:loss(?:/\w+){0,3}\W{0,8}-?\d|(?<![-_])\bepochs?\W{0,4}\d|it/s[\],]|s/it[\],]|\biter(?:ation)?s?\W{0,5}\d"
    rb"|(?:tokens|samples)/s|\b(?:images|img|examples)/s|\[batch=\d+/\d"
    rb"|(?:(?<!-)\b|_)(?<!max_)(?<!num_)(?<!total_)steps?\W{0,5}\d|avg bus bandwidth"
    rb"|client socket has connected to|application startup complete|ready to roll"
    rb"|(?:training|job|run|all|benchmark|finished|completed)\b.{0,20}\b(?:finished|complete[ds]?|succeeded"
    rb"|successfully)\b))",
    re.IGNORECASE | re.DOTALL,
)
"""Which of them do."""
