"""Lines that look like trouble and never are."""

from __future__ import annotations

import re

NOISE = re.compile(
    r"Setting OMP_NUM_THREADS|Redirects are currently not supported|hostname of the client socket cannot be retrieved"
    r"|To enable traceback see|Sending process \d+ closing signal SIGTERM|\(errno: 97 - |errno: 97\b|gai error: -9\b|gai error: -6\b"
    r"|No plugin found|libnccl-(?:net|tuner|profiler)|ncclNetPlugin_v\d|ncclCollNetPlugin_v\d|ncclTunerPlugin|Failed to open libibverbs|Plugin (?:load|name|path)|NET/Plugin"
    r"|NVLS multicast support is not available|(?:peermem|p2p).*detected invalid context|\(0x2c0\)|peer access already enabled"
    r"|openib BTL|btl_openib|no preset parameters were found|There was an error initializing an OpenFabrics|mca_btl_openib"
    r"|(?:Future|Deprecation|PendingDeprecation|Resource)Warning:|is deprecated|will be removed in|destroy_process_group\(\) was not called|process group has NOT been destroyed before|(?:can|may|could) (?:potentially )?(?:cause|lead to) a hang|Guessing device ID"
    r"|unable to resolve host \S+: Name or service|^\s*(?:raise|return|warnings\.warn|except|assert)\b|^frame #\d+|^\s*@ +0x[0-9a-f]+ |^#\d+ +0x|AER: Corrected error|severity=Corrected"
    r"|TF-TRT Warning|Unable to register cu\w+ factory|oneDNN custom operations|computation placer already registered|error_file:|error_handler:\{"
    r"|Failed to find (?:reverse (?!path)|hostname)|reverse DNS|NCCL_(?!SOCKET_IFNAME|IB_HCA|IB_DISABLE set by environment to 0)\w+ set by environment|INFO \S+:\d+ -> [07](?: \[|$)|mount.*already|<NO_OTHER_FAILURES>"
    r"|df: .*triton.*No such file|fatal: not a git repository|\berrors?(?:_count)? ?[:=] ?0\b|: (?:rocm-smi|hipcc|git|lspci|lsmod|numactl)\W* (?:command )?not found|Unable to find hostfile|^debconf: |can only test a child process"
    r"|^wandb: |metrics exporter agent|Export metrics to agent failed|\] Read -1, expected \d+, errno = 1\b|PMIX ERROR: .* in file \S*gds_|net_fastsocket\.cc:\d+ NCCL WARN (?:Cannot get incoming CPU|Maximum retry reached)",
    re.IGNORECASE,
)

PROGRESS = "loss|epoch|it/s]|s/it]|iter|tokens/s|samples/s|step|it/s,|s/it,|bus bandwidth|finished|completed|succeeded|has connected to|startup complete|ready to roll"
"""Literals of lines in which a training tells that it goes on, or has come to its end."""

GOES_ON = re.compile(
    rb"^(?!.*\b(?:aborted|cancelled|canceled|failed|failure|exception|error:|killed|timed out|time-?out|packet loss|terminat\w+)\b)"
    rb"(?:.*(?:loss\W{0,8}-?\d|(?<![-_])\bepochs?\W{0,4}\d|it/s[\],]|s/it[\],]|\biter(?:ation)?s?\W{0,5}\d|(?:tokens|samples)/s|(?:(?<!-)\b|_)(?<!max_)(?<!num_)(?<!total_)steps?\W{0,5}\d|avg bus bandwidth|client socket has connected to|application startup complete|ready to roll"
    rb"|(?:training|job|run|all|benchmark|finished|completed)\b.{0,20}\b(?:finished|complete[ds]?|succeeded|successfully)\b))",
    re.IGNORECASE | re.DOTALL,
)
"""Which of them do."""
