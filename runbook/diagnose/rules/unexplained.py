"""What only says that something failed, or looks like it: no log is called healthy over such a line."""

from __future__ import annotations

from runbook.diagnose.rules.program import LESSER
from runbook.diagnose.sign import Rule, Sign, Tier

NO_ERROR = (
    r"fabric-?manager|\b(?:no|without|zero|0) (?:errors?|failures?|failed)\b"
    r"|\b(?:failures?|errors?)\b[\w ()/]{0,30}[:=] *(?:0|no|none|n/a|false)\s*$"
)
NONE = r"[\"']?(?:=|: *| )*[\"'(]?(?:0\b|false|none|null|no\b)"

TROUBLE = "|".join(
    (
        # a level, or a word that stands for one
        (
            rf"(?-i:\b(?:ERROR|FATAL|CRITICAL|PANIC|EMERG)\b)(?!{NONE})"
            rf"|\b(?:error|fatal|panic)\b ?[:!*](?!{NONE}| *[\d.]+$)|\berror \d+(?![\d.]*[.e]\d)"
        ),
        r"(?-i:\b[EF]) (?:external|tensorflow|xla|third_party)/\S+:\d+\]|(?-i:\b[A-Z]\w+(?:Error|Exception)\b)",
        r"\b(?:an?|the|following|unexpected|internal|system|fatal|runtime) error\b|\*\*\* .*\bError\b",
        # something did not come about
        (
            rf"(?<![-_.])\bfail(?:s|ed|ure|ing)?\b(?![-_.]|{NONE})"
            r"|\b(?:cannot|can't|could ?n[o']t|couldn't|unable to|not able to)\b"
        ),
        rf"\b(?:denied|refused|unreachable|rejected|not permitted)\b(?!{NONE})",
        r"\btimed out\b|\btime-?out (?:waiting|after|exceeded|expired|error|while|occurred)",
        r"\b(?:no such|not found|does not exist|doesn't exist|not supported|mismatch|password is required)\b",
        r"\binvalid (?:argument|value|address|option|port|rank|device|parameter|config\w*|state|handle|operation)",
        (
            r"\bnot enough\b|\b(?:page|protection|access) fault\b|\bimproperly\b|\bstalled\b|\bdeadlock"
            r"|\bno longer (?:available|reachable|responding)\b|\buncorrectable\b(?!.*(?: 0\b|N/A))"
        ),
        # something ended before its time
        (
            r"\b(?:abort(?:ed|ing|s)?|killed|crash(?:ed|es|ing)?|panicked|core dumped|segfault|CrashLoopBackOff"
            r"|Evicted|unhealthy)\b"
        ),
        r"\bterminat(?:ed|ing) (?:by|due|with|un|after|abnorm|on|because)",
        # a number of the system's, or a word of another language
        (
            r"\[?\b(?:errno|winerror|hresult|nt_?status)\b\W{0,4}-?(?:0x)?[1-9]|\berror ?code\b\W{1,4}-?(?:0x)?[1-9]"
            r"|(?-i:\bE(?:ADDR|CONN|HOST|NET|PERM|ACCES|PIPE|TIMEDOUT|NOENT|NOSPC|INVAL|IO\b)[A-Z]*\b)"
        ),
        r"错误(?!码?[:：=]? ?0)|失败|异常|出错|无法|超时|崩溃|エラー|失敗|例外|できません|오류|에러|실패",
        (
            r"\b(?:fehler(?:haft)?|fehlgeschlagen|erreur|échec|échoué|ошибк[аи]|удалось|сбой|erro|falha|falhou"
            r"|falló|fallido|errore|fallit[oa]|impossible de|hata|błąd|lỗi|fout)\b"
        ),
        r"^\s*File [\"“].+[\"”], line \d+, in [\w<]|^killing subprocess \d",
        (
            r"\bvendor err\b|\bviolation\b|\b(?:abnormal(?:ly)?|unexpectedly|abruptly|giving up|gave up"
            r"|corrupt(?:ed|ion)?|not responding)\b"
        ),
        r"\b(?:connection|communication)\b.{0,20}\blost\b|\blost (?:connection|communication|contact)",
        (
            r"\bexit(?:ed|s)?\b.{0,20}\b(?:code|status)[ =:]*[1-9]|\bnon-?zero (?:exit|status|return|code)"
            r"|\s\d+/\d+ +(?-i:Error)\b"
        ),
    )
)
"""How programs of all kinds tell that something is wrong."""

TELLS_FAILURE = ("nccl-warn", "network-exception", "other-exception", "glog-error", "says-failed", "trouble")
"""Signs of lines that tell a failure in words that no rule may know."""
WRAPPERS = ("launcher-failed", "nccl-failed", "traceback")
"""Signs of lines that are known to tell only that something failed."""
RULES = (
    Rule(
        "insufficient-evidence",
        "these lines only say that something failed ({line}), not what",
        ("nccl-failed", "launcher-failed"),
        unless=("unfamiliar-error", "ends-again-and-again"),
        tier=Tier.WRAPPER,
    ),
    Rule(
        "insufficient-evidence",
        "something failed, and no rule knows these lines ({line})",
        ("unfamiliar-error", "nccl-failed", "launcher-failed"),
        tier=Tier.WRAPPER,
        confidence="medium",
    ),
    Rule(
        "insufficient-evidence",
        "NCCL returned an error through its calls ({line}), and the warning that says why is not here",
        (Sign("nccl-gave-up", "nccl info", r"NCCL INFO (?P<where>\S+):\d+ -> [1-6](?= |$)"),),
        unless=("joined", "progress-seen", "unfamiliar-error"),
        tier=Tier.WRAPPER,
    ),
    Rule(
        "insufficient-evidence",
        "nothing worse than this warning is told ({line}), and nothing tells that the run went well",
        (
            Sign(
                "warned",
                "warn|error: |exception: ",
                rf"^(?!.*(?:{NO_ERROR}|Warning:|<warn>|nothing to do))(?=.*(?-i:\bWARN(?:ING)?\b"
                r"|\bINFO\b.*[A-Z]\w+(?:Error|Exception): ))(?:.*(?:\wError|\b(?:failed|failure|error|exception"
                r"|unable|cannot|refused|timed out|denied|lost|died|killed|aborted|unreachable|not (?:responding"
                r"|active|running|reachable)))\b(?!(?:=|: *| )0\b))",
            ),
        ),
        unless=("joined", "trouble", "progress-seen"),
        tier=Tier.WRAPPER,
        confidence="low",
    ),
)

SIGNS = (
    Sign(
        "launcher-failed",
        "reliably start|has exited due to|how to route a message|childfailederror|exited with|exit code|exitcode"
        "|returned non-zero|srun: error|mpirun noticed|mpirun detected|exit status|return code|primary job"
        "|process exited|processraised|worker group failed|backofflimit|crashloop|terminating stepid|job step aborted",
        r"^(?!.*fabric-?manager)(?:.*(?:ChildFailedError|exit(?:ed)? with (?:exit )?(?:code|status) (?!0\b)-?\d"
        r"|exitcode\s*(?:: +|(?<= ))(?!0\b)-?\d|returned non-zero|srun: error|mpi(?:run|exec) (?:noticed|detected)"
        r"|(?:exit|return) (?:code|status)[ =:]+(?!0\b)-?\d|Primary job|Worker group FAILED|ProcessRaisedException"
        r"|CrashLoop|Job step aborted|ORTE was unable|unable to reliably start|does not know how to route a message"
        r"|has exited due to process rank))",
    ),
    Sign(
        "network-exception",
        "error|exception",
        r"^(?:[A-Za-z_]\w*\.)*(?:Dist\w*Error|Rendezvous\w*Error|ConnectionError|TimeoutError"
        r"|Connection\w+Error|BrokenPipeError|OSError|RuntimeError|XlaRuntimeError|JaxRuntimeError"
        r"|AcceleratorError|HorovodInternalError|Ray\w*Error|\w*Exception)\b",
    ),
    Sign(
        "other-exception",
        "error|exception|traceback",
        r"^(?:[A-Za-z_]\w*\.)*(?-i:[A-Z]\w*Error|(?:[A-Z]\w*)?Exception)(?:: |$)|Traceback \(most recent",
    ),
    Sign(
        "glog-error",
        ".cpp:|.cc:|.hpp:|terminating process|terminate called|fatal",
        r"\[E(?:[\d:. ]* )?\S*\.(?:cpp|cc|h|hpp):\d+\]|^[EF]\d{4} |terminate called|\bFATAL\b|Fatal (?:Python )?error",
    ),
    Sign(
        "says-failed",
        "hang|hung|stuck|no progress|error:|failed",
        r"\b(?:hangs?|hung|stuck) (?:here|at|in|on|for|during|forever)\b|[(\[]hangs?\b|no progress for"
        r"|^(?:\S+: )?(?:fatal )?error: ",
    ),
    Sign(
        "trouble",
        "external/|tensorflow/|xla/|error|exception|exited with|fatal|critical|panic|fail|cannot|can't"
        "|could not|couldn't|unable|denied|refused|unreachable|rejected|not permitted|timed out|timeout|abort"
        "|terminat|killed|crash|core dumped|not found|no such|does not exist|doesn't exist"
        '|abruptly|killing subprocess|vendor err|violation|file "|file “|errno|winerror|hresult|status|eaddr'
        "|econn|ehost|enet|eperm|eacces|epipe|etimedout|enoent|enospc|einval|eio|错误|失败|异常|出错|无法|超时|崩溃|エラー|失敗"
        "|例外|できません|오류|에러|실패|fehler|fehlgeschlagen|erreur|échec|échoué|шибк|удалось|сбой|erro|falha|falhou"
        "|falló|fallido|fallit|impossible de|hata|błąd|lỗi|fout|non-zero|nonzero|exit code|exit status"
        "|quit unexpectedly|unexpectedly|giving up|gave up|corrupt|not responding|lost connection"
        "|lost communication|connection lost|hung|hang|stuck|not supported|mismatch|backoff|abnormal|invalid"
        "|segfault|unhealthy|evict|not enough| fault|improperly|stalled|deadlock|no longer|uncorrectable"
        "|is required",
        rf"^(?!(?!.*(?-i:\b(?:ERROR|FATAL|CRITICAL)\b)).*{LESSER})(?!.*(?:{NO_ERROR}))(?:.*(?:{TROUBLE}))",
    ),
)
