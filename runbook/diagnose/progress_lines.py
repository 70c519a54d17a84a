"""Patterns that tell how far a run got by its own lines, and which lines look like errors and never are. A log without
a failure is healthy only if a line shows that the run went on.

All patterns are for lines in lower case: they are searched in every line, and ignoring case would take twice as long.
"""

from __future__ import annotations

import re
from enum import IntEnum


class Reached(IntEnum):
    """The furthest state that any line of the logs shows."""

    NOTHING = 0  # only banners, settings, and a program's own words
    SETUP = 1  # ranks met, a network was chosen, a service runs
    PROGRESS = 2  # steps, results, an end


_SETUP_VERBS = (
    rb"(?:(?:down)?load\w*|fetch\w*|pull\w*|import(?:ed|ing)?|creat\w*|build\w*|built|compil\w*|initiali[sz]\w*|init"
    rb"|set-?up|setting up|configur\w*|prepar\w*|pars(?:ed|ing)|reading|tokeniz\w*|captur\w*|scann\w*|cach(?:ed|ing)"
    rb"|clon(?:ed|ing)|regist\w*|mount\w*|allocat\w*|install\w*|warm\w*|index\w*|open(?:ed|ing)|detect\w*|attach\w*)"
)
BEFORE_STEPS = (
    # a bar, or a rate, of work before the first step; a colour may stand before it
    rb"(?:\b|\dm)(?:" + _SETUP_VERBS + rb"|map|filter|generating)\b[^|%\r]{0,80}(?:\d%\s?\||[kmg]b/s)"
    rb"|(?:\b|\dm)(?:generating \w+ split|running tokenizer)\b"
    # the end of such work, or of a set-up
    rb"|(?:\b|\dm)" + _SETUP_VERBS + rb"\b.{0,40}\b(?:done|finished|completed?|succe\w+)\b"
    rb"|\b(?:done|finished|completed?|succe\w+)(?: with)? " + _SETUP_VERBS + rb"\b"
    rb"|\b(?:start|resum|begin|continu)\w*\b.{0,40}\b(?:from|at) (?:step|iter\w*|epoch|batch)\b"
)
"""Parts of lines about what a run does before it trains: loading, compiling, the step at which it is to begin."""
NOT_ZERO_PERCENT = rb"(?!\d*[:/\d ]{0,16}(?<!\d)0%\|)"
"""Behind a number: it does not belong to a bar at 0 %."""
NO_VALUE = rb"[\"']?\s*[=:]\s*[\"']?(?:0|false|none|null|no)\b"
UNLESS_FAILURE = (
    rb"^(?!.*\b(?:(?:(?<!expected )fail\w*|errors?|exceptions?)\b(?=\W{0,3}[=:])(?!"
    + NO_VALUE
    + rb")|(?:(?<! 0 tests )fail\w*|exception)\b(?!\W{0,3}[=:])|abort\w*|cancel+ed|kill\w*|timed out"
    rb"|time-?out (?:after|waiting)|(?<!\bnormal )terminat\w+\b(?! of cpl7-)"
    rb"|waiting(?! \d{1,9} seconds for other agents)|will"
    rb"|not (?:yet )?(?:done|finish\w*|complete\w*))|.*(?:" + BEFORE_STEPS + rb"))"
)
"""The beginning of a pattern that matches no line with a failure, or with work before the first step."""

PROGRESS = re.compile(
    UNLESS_FAILURE + rb"(?:.*?(?:"
    # an end
    rb"\b(?:done|finished|succeeded|exiting)\b"
    rb"|(?<!barrier )(?<!init )\b(?:complete[ds]?|successful(?:ly)?"
    rb"|success)\b(?! (?:connected|initiali[sz]ed|store|loaded|start\w*))"
    rb"|\bexit(?:ed)?\b.{0,16}\b(?:code|status)?[ =:]*0\b"
    rb"|\bcode: 0\b|\bsav(?:ed?|ing)\b.{0,20}\b(?:checkpoint|model|to)\b|\bgoodbye\b"
    rb"|destroy_process_group\(\) was not called|has not been destroyed before|destroy complete|\bfailed=0\b"
    rb"|\b(?:\d+|tests?) passed\b|\.\.\. passed\s*\Z|\bpi is approximately \d"
    # a result
    rb"|\b(?:final|best|test|validation|evaluation) metrics\W{0,4}[:{]"
    rb"|all_?reduce ok|out of bounds values : 0 ok|avg bus bandwidth|\b\d+ packets transmitted"
    rb"|\b(?:accuracy|acc|perplexity|ppl|throughput|\w+[ _](?:error|err|acc|loss))\W{0,4}\d"
    rb"|\b(?:[gmt]b/s|tflops?|examples/s|images/s|img/s|ms/step)\b"
    rb"|(?:^|\s)\d+\s+\d+\s+[a-z]\w*\s+(?:\w+\s+)?-?\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+\b"
    # on the way
    rb"|\b\d+%\s?\|(?![^|\r]*\|\s*0/\d[^\r]{0,24}<\?)|\[\d+:\d\d<(?!\?)|\bin the forward pass\b"
    rb"|(?<!-)\b(?:batch(?!=\d+\b(?!/))|global_step|iter(?:ation)?|step|tick|epoch|episode)\W{0,12}\d(?!\d*\((?:factor|bytes)\))"
    + NOT_ZERO_PERCENT
    + rb"|\"(?:step|epoch|loss)\""
    rb"))"
    # a row of a benchmark: a size, counts, then what was measured
    rb"|\A(?:>[ \t]*)?\s*\d+(?:[ \t]+\d+){0,2}(?:[ \t]+\d+\.\d+){1,12}\s*\Z"
    # warnings that only a step of training prints
    rb"|\A.*?(?:torch/utils/checkpoint\.py:\d+: \w*warning|\bgrad strides do not match"
    rb"|\breducer buckets have been rebuilt|\bbefore `optimizer\.step\(\)`)",
    re.DOTALL,
)
"""A line of a run that made steps, measured something or came to a good end."""

WENT_WELL = re.compile(
    rb"^(?:\s*0 tests completed and failed residual checks\b"
    rb"|\s*number of trials: (?P<trials>[1-9]\d{0,9})/(?P=trials) \((?P=trials) terminated\))|"  # Ray Tune
    + UNLESS_FAILURE
    + rb"(?:=* *\d+ passed\b.* in [\d.]+ ?m?s|ok(?: \((?:skipped|expected failures)=\d+.*\))?\s*$"
    rb"|test summary:\s*\| +pass +total(?: +time)?\s*$"  # Julia, which has a column more for each kind of failure
    rb"|\[  passed  \] \d+ test|100% tests passed, 0 tests failed\b|final summary::hpcg result is valid\b"
    rb"|.*?\bexperiment verdict is: pass\b|.*?\bsuccessful termination of cpl7-\w"
    # yarn, argo
    rb"|.*?\bfinal app status: succeeded\b|.*?\bphase running -> succeeded\b"
    # determined, airflow, prefect, snakemake, ray tune, spark
    rb"|.*?\b(?:state set to completed|marking task as success)\b"
    rb"|.*?\bflow run '[^']{1,80}' - finished in state completed\("
    rb"|(?P<steps>[1-9]\d{0,9}) of (?P=steps) steps \(100%\) done\b|number of errored trials: 0\b"
    rb"|.*?\bdagscheduler: job \d{1,9} finished: .{1,200} took\b"
    rb"|job \[\w{1,80}\] finished successfully\b"
    # dcgm, cargo
    rb"|\W*overall health\W+healthy\b|test result: ok\. [1-9]\d{0,9} passed\b"
    # kubectl
    rb"|\s*normal +completed\b.{0,40} job-controller +job completed\b"
    rb"|(?:deployment|statefulset|daemon ?set)\b.{0,100}\bsuccessfully rolled out\b)",
)
"""The line in which a test suite says at its end that all tests passed, or what watched over a job that all of it went
well: errors before it were on purpose, or were overcome."""
WENT_WELL_HINTS = (
    b"pass|ok|is valid|succe|tests completed|state completed|set to completed|steps (100%)|errored trials|terminated)"
    b"|dagscheduler|healthy|job completed"
).split(b"|")
"""Parts of lines in lower case: one without any of them does not match WENT_WELL."""

EXIT_CODE_ASKED = re.compile(rb"\A(?:.*[$#>] )?(?:echo (?:\$\?|%errorlevel%)|\$lastexitcode)\s*\Z")
"""A command, in lower case, that prints the exit code of the program before it."""

TABLE_HEAD = re.compile(
    rb"\A\s*(?:# (?:osu|size\b.{0,40}(?:latency|bandwidth|\(us\)|mb/s))"
    rb"|#?bytes +#?(?:repetitions|iterations)|#bytes +#"
    rb"|\W{0,4}(?:epoch|step|iter(?:ation)?)s?(?:[\s|]{1,20}[a-z][\w/%().-]{0,30}){2,20}[\s|]{0,9}\Z)"
)
TABLE_ROW = re.compile(rb"\A[\s|]*\d{1,15}(?:[\s|]+[\[(]?[-+]?\d[\d.:e%+-]{0,20}[\])*]{0,3}){1,24}[\s|*]*\Z")
"""A row below TABLE_HEAD, as the benchmarks of OSU, Intel and perftest print it for each size once it was measured, and
trainers for each epoch."""

_ENDED_WELL = (
    rb"(?:.*?(?:'train_runtime': \d|\b(?:"
    rb"(?:training|run|launch|\w{0,12}job|trial|benchmark|evaluation|everything|all|program)\b.{0,40}\bsucceeded\b"
    rb"|worker group successfully finished|ended \(code 0\)|phase\W{1,3}succeeded\b|error:0 status:0\b"
    rb"|exit(?:ed|ing) with (?:(?:return |exit )?code|status) 0\b|finished\W{1,3}rc=0\b"
    rb"|exit(?:s|ed)? successfully\b|application shutdown complete\b"
    rb"|(?:process|task|experiment|pipeline|workflow|script)\b.{0,60}"
    rb"\b(?:completed successfully|status\W{1,3}completed\b)"
    # the last of all its steps
    rb"|(?:step|iter(?:ation)?)\W{0,12}(?P<last>[1-9]\d{1,14})\s{0,8}/\s{0,8}(?P=last)\b"
    rb"|trainer\.fit\W{1,3}stopped\b|test (?:is a success|successful|succeeded)\b"
    rb"|(?:job_complete|run_success|marking task as success|build success(?:ful)?)\b"
    rb"|(?P<all>[1-9]\d{0,14}) ?/ ?(?P=all) (?:rows|records|shards|files|samples|documents|items|chunks|partitions)"
    rb" (?:\w+ )?(?:inserted|written|wrote|processed|uploaded|exported|embedded|scored|reduced)\b"
    rb"|all\b.{0,60}\b(?:correct|match(?:es|ed)?|verified|identical)\W*\Z"
    # gromacs, lammps, openfoam, vasp, wrf, cp2k, gaussian, htcondor, fds, quantum espresso
    rb"|(?:gromacs reminds you|total wall time: \d{1,4}|finalising parallel run|general timing and accounting"
    rb"|success complete wrf|program ended at|normal termination (?:of|\(return value 0)"
    rb"|stop: \w{1,20} completed successfully)\b|job done\.\s*\Z))"
    rb"|(?:\W{0,3}|[\w./-]{1,60}: "
    rb"|.*?\b(?:saved|written|wrote|uploaded|done|finished|ended|exited|launcher|trainer)\b.{0,80}?\b)"
    rb"(?:rc|ret|exit[ _]?(?:code|status)?|return[ _]?code|status)[^\w!<>\x80-\xff]{1,9}0\W{0,2}\Z"
    rb"|(?!\s*\d[\d_+]*\.).*?\bcompleted\s+0:0\b"  # a row of sacct, but of no step: `.extern` ends well even so
    rb"|\s*(?:state|status|phase|result|verdict|outcome)\W{1,3}(?:completed|succeeded|success(?:ful)?|pass(?:ed)?)\W*\Z"
    rb"|status: {2,40}succeeded\s*\Z"  # argo
    rb"|\W{0,3}(?:success(?:ful(?:ly)?)?|succeeded|all (?:done|ok|good|passed))\W{0,3}\Z"
    rb"|# (?:out of bounds values : 0 ok|avg bus bandwidth))"
)
_ENDED = (
    rb"(?:.*?\b(?:(?:training|run|launch|\w{0,12}job|trial|benchmark|evaluation|everything|all|program)\b.{0,40}"
    rb"\b(?:done|finished|complete[ds]?)\b|training end(?:ed|s)?\W{0,4}\Z|done training\b|\] end of program\W*\Z))"
)
RUN_ENDED_WELL = re.compile(rb"^(?=" + _ENDED_WELL + rb")" + UNLESS_FAILURE, re.DOTALL)
"""A line in which a run says that it has ended well."""
RUN_ENDED = re.compile(rb"^(?=" + _ENDED + rb"|" + _ENDED_WELL + rb")" + UNLESS_FAILURE, re.DOTALL)
"""The same, or a line which only says that it is over, as a batch script says at its end whatever happened."""

_RUN_SUBJECT = (
    rb"(?:rank|worker|node|process|task|pod|job|gpu|host|trainer|replica|peer|server|agent|launcher|actor|executor"
    rb"|instance|machine|container|link|port|master|coordinator|scheduler|run|training|service|daemon|cluster|it|we)"
)
_GOOD_OUTCOME = (
    rb"(?:(?:re-?|un)?(?:start|load|launch|creat|connect|join|register|initiali[sz]|spawn|sync|bind|configur|detect"
    rb"|select|enter|resum|recover|assign|enabl|listen|sav|begin|prepar|us|receiv|report|respond|running|wait|accept|map|serv"
    rb"|warm)\w*"
    rb"|ready|run|runs|up|done|ok|okay|online|alive|live|healthy|here|there|bound|set|found|available|active|good|fine"
    rb"|normally|idle|began|begun|sent|elected|leader|built|passed|finish\w*|complet\w*|succe\w+|exit\w*|visible"
    rb"|and|at|on|in|of|for|with|from|as|by|has|have|is|are|was|were|the|to)\b"
)
LAST_WORDS = re.compile(
    rb"\A(?!.*\b(?:info|debug|notice|trace|warn|\w*warning|deprecat\w+|newly initialized|hint|note|summary)\b"
    rb"|\[?[iw](?:\d{4})? )(?:"
    # a rank, node or the like, and a word for what became of it that is no good word
    rb"(?:.*[\]:)>|] +)?(?:the )?"
    + _RUN_SUBJECT
    + rb"(?: ?[#:=-]? ?[\w.-]{0,60}\d[\w.-]{0,60})?(?: (?:to|on|of) [\w.-]{1,60})?(?: (?:is|was|has|have|had|got|went"
    rb"|just|been|now|suddenly|seems?|appears?|to|be))* (?!"
    + _GOOD_OUTCOME
    + rb")[a-z][a-z'-]{2,}(?: (?:away|down|out|off|over"
    rb"|dark|silently|early|again|(?:for|after) \d+ ?\w+))?[ .!]*\Z"
    rb"|.*\b(?:gone|lost|dead|nowhere|vanish\w*|disappear\w*|broken?|halted|bail(?:ed|ing)|giv(?:e|ing) up|kaput|quit"
    rb"|expired|exhausted|exceed(?:s|ed)|un(?:available|responsive|usable|reachable|recoverable|readable|stable|safe)"
    rb"|oops|sorry|too (?:many|few|late|slow)|out of (?:space|memory|handles|descriptors|sync)|retrying|no longer|oom"
    rb"|prematurely|abandon\w*|marked (?:as )?(?:bad|dead|down|failed|lost|offline)|offline|overheat\w*|thermal"
    rb"|power (?:failure|loss|lost|cycled?)|hang|hung|hangs|nan(?!,|[\w ]{0,20}[=:] {0,4}0\b)"
    rb"|assertion|tripped|wedged|watchdog|dropped (?:off|out)"
    rb"|(?:did|does|do|could|would|has|have|is|was|are|were) ?n[o']t|stopped (?!at\b|early)\w+ing|ended early"
    rb"|no (?:heartbeat|answer|reply|response|progress|signal|sign|space|room|more|further)\b.{0,40}"
    rb"|not (?:ready|responding|alive|reachable|enough|connected|possible))\b"
    rb"(?! ?[=:] ?(?:0|no|none|false)\b)|.* down[ .!]*\Z)",
    re.DOTALL,
)
"""A last line after which nobody would call the run healthy, though no rule knows the line."""

SETUP = re.compile(
    rb"\A(?:.*?(?:"
    # ranks met
    rb"init complete|all ranks joined|completed store-based barrier|barrier for key:\S+ with \d"
    rb"|all \w+ processes registered|process(?:es)? registered|hostname of the client socket cannot be retrieved"
    rb"|connection established|authentication succeeded|accepted (?:publickey|password|connection)"
    # NCCL and its like are past their bootstrap
    rb"|peer access already|\(0x2c0\)|mnnvl|running collective|collective backend|init torch distributed ends"
    rb"|capture cuda graph end|batch_all_reduce: \d"
    # a service runs
    rb"|(?<!not )\b(?:started|ready|running(?! (?:train|eval|predict|token|warm|command|script)\w*))\b"
    # of each kind again, at the beginning of a word: such alternatives stand together, which is faster
    rb"|\b(?:connected (?:to|all|with|after)\b|successfully connected\b"
    rb"|(?:i am|rank|process|worker|task|node) \d+ ?(?:of|out of|/|in world size|is (?:bound|assigned|mapped) to) ?"
    rb"(?:\w+ )?\d+"
    rb"|rank \d+ (?:is )?bound to\b|mpi startup\(\): \d+ +\d|mpi size: \d"
    rb"|using (?:internal )?network\b|net/\w+ ?: using \[?\d|net : using interface\b|via (?:p2p|shm|net|direct)"
    rb"|(?:ring|channel|tree)s? \d+|connected all\b|nvls comm|trees?\b (?:enabled|disabled)"
    rb"|startup complete|server is ready|ready to serve|listening (?:on|at)|running on http|uvicorn running"
    rb"|serving (?:on|at)\b"
    rb"|subnet up\b|mounted filesystem|module license|kernel: |systemd\[\d+\]|nvrm\b)"
    rb"))",
    re.DOTALL,
)
"""A line of a run whose setup got somewhere: ranks met, NCCL chose a network, or a service runs."""


REACHED_LITERALS = tuple(
    "done|finish|succe|exit|complete|code: |save|goodbye|destroy|failed=|passed|reduce ok|bandwidth"
    "|packets transmitted|acc|perplexity|ppl|throughput|error|err |_err|loss|b/s|flop|examples/s"
    "|images/s|img/s|ms/step|float|half|double|int|%|forward pass|batch|step|tick|iter|epoch|joined|barrier"
    "|registered|connect|i am |episode|rank|process|worker|task|node|hostname|accepted|using|via|ring|channel|tree"
    "|checkpoint|grad strides|nvls|peer access|x2c|mnnvl|collective|ready|listen|running|started|kernel|systemd"
    "|nvrm|mpi s|out of bounds|cuda graph|torch distributed|serv|mounted|module|subnet".split("|")
)
"""Literals of PROGRESS and SETUP: a line without any of them matches neither, unless it is a row of numbers."""


def progress_reached(line: bytes, goes_on: bool) -> Reached:
    """How far a run is that prints this line (in lower case); `goes_on`: the line matches GOES_ON."""
    if (goes_on and b"has connected to" not in line) or PROGRESS.match(line):
        return Reached.PROGRESS
    return Reached.SETUP if SETUP.match(line) else Reached.NOTHING


HARMLESS_ERROR = re.compile(
    r"\[hardware error\]: (?!.*(?:uncorrect|deferred|fatal|containable|poison|panic))"
    r"|hwloc.{0,40} received invalid information|hwloc will now ignore|-- execution is retried"
    r"|may have been partially swapped out|nvmldeviceget\w{1,60}\(\): not supported|exception in thread queuerunner"
    r"|cancelled by an explicit call to `session::close|failed with: intersection without inclusion"
    r"|unable to find any relevant network interfaces|setting omp_num_threads"
    r"|redirects are currently not supported|hostname of the client socket cannot be retrieved"
    r"|to enable traceback see|\(errno: 97 - |errno: 97\b|gai error: -9\b|gai error: -6\b"
    r"|falling back to simple order|no plugin found|lib\w{0,3}ccl-\w+|ncclnetplugin_v\d|ncclcollnetplugin_v\d"
    r"|nccltunerplugin"
    r"|got async event ?: (?:client reregistration|(?:sm|lid|pkey|gid)\b[\w ]* change|port active)"
    r"|failed to open libibverbs|plugin (?:load|name|path)|net/plugin|nvls multicast support is not available"
    r"|(?:peermem|p2p).{0,200}detected invalid context|\(0x2c0\)|peer access already enabled|openib btl"
    r"|btl_openib(?!.{0,200}error polling)|no preset parameters were found"
    r"|there was an error initializing an openfabrics|mca_btl_openib"
    r"|(?:future|deprecation|pendingdeprecation|resource)warning:|is deprecated|will be removed in"
    r"|destroy_process_group\(\) was not called|process group has not been destroyed before"
    r"|(?:can|may|could) (?:potentially )?(?:cause|lead to) a hang|guessing device id"
    r"|unable to resolve host \S+: name or service|aer: corrected error|severity=corrected|tf-trt warning"
    r"|unable to register cu\w+ factory|onednn custom operations|computation placer already registered"
    r"|error_file:|error_handler:\{|failed to find (?:reverse (?!path)|hostname)|reverse dns"
    r"|nccl_(?!socket_ifname|ib_hca|ib_gid_index|ib_disable set by environment to 0)\w+ set by environment"
    r"|info \S+:\d+ -> [07](?: \[|$)|mount.{0,200}already(?! in the mount point list)|<no_other_failures>"
    r"|df: .{0,200}triton.{0,200}no such file|fatal: not a git repository"
    r"|error occurred when finalizing generatordataset|websocketclosederror|acpi (?:bios )?error\b"
    r"|could not open .{0,20}command socket|rmmod: error: module \w+ is not currently loaded"
    r"|unable to open 'kernel/dkms\.conf'|bar \d+: failed to assign|error record serialization table"
    r"|corrected error, no action required"
    r"|: (?:rocm-smi|hipcc|git|lspci|lsmod|numactl)\W* (?:command )?not found|unable to find hostfile"
    r"|port `?\d+`? is already in use\. accelerate will attempt to launch"
    r"|bash: cannot set terminal process group|bash: no job control in this shell"
    r"|cannot find name for (?:group|user) id|x11 connection rejected|prctl\(pr_sve_get_vl\) failed"
    r"|(?:set_mempolicy|mbind): operation not permitted|retrying \(retry\(total=[1-9]"
    r"|couldn't chdir to .{0,200}: going to /tmp|failed to send message_task_exit"
    r"|conflicting cpu frequency values|some metrics cannot be computed|main process disappeared!"
    r"|metrics exporter agent|export metrics to agent failed|\] read -1, expected \d+, errno = 1\b"
    r"|slurm_receive_msg \[[\d.:]+\]: zero bytes were|\berr 1b11: |\bmsg=.collector failed\b"
    r"|chdir\(/var/log\): permission denied|unable to open pidfile"
    r"|couldn't get resource list for \S+\.k8s\.io|module verification failed: signature"
    r"|pmix error: .{0,200} in file \S*gds_"
    r"|net_fastsocket\.cc:\d+ nccl warn (?:cannot get incoming cpu|maximum retry reached)|/xid-errors\b"
    # at the beginning of a line, or of a word: such alternatives stand together, which is twice as fast
    r"|^(?:"
    r"\s*(?:raise|return|warnings\.warn|except|assert)\b"
    r"|\s*(?:print ?\([^)]{0,200}\b(?:error|fail\w*|killed|in use|out of|refused|timed out)\b"
    r"|log(?:ger|ging)?\.\w+\(|sys\.exit\(|(?:echo|trap) [\"'$])"
    r"|frame #\d+|\s*@ +0x[0-9a-f]+ |#\d+ +0x|(?:operating in )?a condition that could result in"
    r"|data corruption\.  the use of|debconf: |fontconfig |wandb: (?!.*\(failed [1-9])|head is now at "
    r"|(?:prompt|answer|sample|generated text)\b[^:]{0,20}: |unable to init server: could not connect"
    r"|(?:self\.)?_?log(?:ger|ging)?\.\w+\(f?['\"]|(?:\+ )?trap ['\"]|\W{0,4}(?:\[\w+\] )?fix(?:ed|es)?\b"
    r")"
    r"|\b(?:"
    r"error[ -]checking (?:is )?(?:enabled|disabled|on|off)\b|edac mc\d+: \d+ ce\b|coordinator was stopped\.?$"
    r"|errors?(?:_count)? ?[:=] ?0\b(?! in \S)"
    r"|your (?:mpi )?job may (?:hang|behave)\b|nrt:nrt_close\b|kill: \(\d+\) - no such process"
    r"|rm: cannot remove .{0,200}: no such file|mkdir: cannot create directory .{0,200}: file exists"
    r"|torch\.cuda\.\w+ is replaced with torch\.npu|[efz]?grep (?:--?[\w=]+ )*['\"]"
    r")"
)

GOES_ON_LITERALS = (
    *("loss", "epoch", "episode", "it/s]", "s/it]", "iter", "tokens/s", "samples/s", "step", "tick", "it/s,", "s/it,"),
    *(
        "bus bandwidth",
        "finished",
        "completed",
        "succeeded",
        "residual",
        "has connected to",
        "startup complete",
        "ready to roll",
    ),
    *("images/s", "img/s", "examples/s", "[batch=", "hello world", "hello, world", "reporting for duty", "success: "),
    *("post /", "method=", "time_per_token", "tok/s", "proc'd", "trial ", " requests", "| post", "total_time="),
)
"""Literals of GOES_ON: a line without any of them does not match it."""

_UNLESS_TROUBLE = (
    rb"^(?!.*\b(?:aborted|cancelled|canceled|fail(?:ed|ure)\w*|exception|error:|killed|timed out|time-?out"
    rb"|packet loss|terminat\w+|loss\W{1,4}(?:nan|inf))\b|.*(?:" + BEFORE_STEPS + rb"))"
)
_INFERENCE_PATH = rb"/(?:completions|generate\w*|embeddings|infer\w*|predict\w*)\b"
_STEPS = (
    # `epochs 3` without a total, as in `epochs 3/10`, is a setting; so it is for iterations and steps
    rb"loss(?:/\w+){0,3}\W{0,8}-?\d|(?<!\?)it/s[\],]|(?<!\?)s/it[\],]"
    rb"|(?<![-_])\bepoch(?:\W{0,4}\d|s\W{0,3}\d+ ?/ ?\d)"
    + NOT_ZERO_PERCENT
    + rb"|\b(?:iter(?:ation)?|tick|episode)(?:\W{0,12}\d|s\W{0,3}\d+ ?/ ?\d)"
    rb"|(?:tokens|samples|tok)/s(?:ec(?:onds?)?)?\b|\b(?:images|img|examples)/s|\[batch=\d+/\d"
    rb"|(?:(?<!-)\b|_)(?<!max_)(?<!num_)(?<!total_)step(?:\W{0,5}\d(?!\d*\((?:factor|bytes)\))|s\W{0,3}\d+ ?/ ?\d)"
    rb"|avg bus bandwidth|\bresidual\b\W{0,4}\d|%  proc'd: \d|\btrial \d+ finished with value\b"
    rb"|client socket has connected to|application startup complete|ready to roll"
    # a server's answer, where others are asked whether it lives
    rb"|\b[1-9]\d{0,9} requests,? 0 (?:errors|failed)\b|\| 20\d \|.{0,80}\| +post\b"
    rb"|\btotal_time=\W?[\d.]{1,20}m?s\b.{0,300}: success\s*\Z"
    rb"|\"post /\S{0,200} http/\d(?:\.\d)?\" 20\d\b|\bpost (?=/)\S{0,80}" + _INFERENCE_PATH + rb"\S{0,80} 20\d\b"
    rb"|\bmethod=\"?post\b.{0,80}\bpath=\S{0,80}"
    + _INFERENCE_PATH
    + rb".{0,80}\bstatus=\"?20\d\b|\btime_per_token\W{1,3}[\d.]{1,20} ?(?:m|u|\xc2\xb5)?s\b"
    rb"|\bhello,? world\b|\breporting for duty\b|\bsuccess: (?!0|false|no)\w"
    rb"|(?:training|job|run|all|benchmark|finished|completed)\b.{0,20}\b(?:succeeded|successfully)\b"
)
STEPS = re.compile(_UNLESS_TROUBLE + rb"(?:.*(?:" + _STEPS + rb"))", re.DOTALL)
"""A line that shows that a run's training or service goes on, or has ended with success."""
GOES_ON = re.compile(
    _UNLESS_TROUBLE + rb"(?:.*(?:" + _STEPS + rb"|(?:training|job|run|all|benchmark|finished|completed)\b.{0,20}"
    rb"\b(?:finished|complete[ds]?)\b))",
    re.DOTALL,
)
"""The same, or a line which only says that something is over, as a batch script's last one does whatever happened."""


def shows_progress(line: str) -> bool:
    """Whether a line shows that a run goes on, whatever the level at which it was logged."""
    return GOES_ON.match(line.lower().encode("utf-8", "replace")) is not None


_ASKING = re.compile(
    r"\A(?:[\"'“「(]{0,2}(?:is|are|am|was|were|should|shall|do|does|did|can|could|would|will|why|what|how|which|who|where"
    r"|when|has|have|any|or|and|but|so|it|that|this|these|if)\b"
    r"|.{0,300}?(?:\b(?:i|i'm|i've|my|me|anyone|anybody|someone)\b(?![:\]/])|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]))"
)
_PLEA = re.compile(
    r"\A(?!错误|失败|警告|异常)[^\x00-\x7f].*(?:请(?:问|教|大佬|帮)|吗|谢谢|求助|教えて|でしょうか|お願い|부탁|나요)"
    r"|\A(?:is|are|should|do|does|can|why|what|how) (?:my|i|it|this|there|we|you)\b[^:=\[]*\?"
)
_FIRST_PERSON = re.compile(r"\b(?:i|i'm|i've|my)\b(?![:\]/=])")
WORDS_OF_A_REMARK = 7  # a line of fewer words with "I" or "my" may be a program's, whose level is the letter I

SAYS_IT_HANGS = re.compile(
    r"\b(?:stuck\b|it (?:just |then |always |simply |only ){0,2}(?:freezes|froze|hangs|hung|stops)\b"
    r"|(?:hangs?|freezes|frozen|stops?) (?:here|there|forever)\b|frozen\b.{0,20}\boutput\b"
    r"|no (?:more|further) output\b|no output\b\W*$|nothing (?:more|further|happens|after|for \d)\b"
    r"|bleibt .{0,30}(?:stehen|hängen)\b|hängt (?:hier|dann|sich)"
    r"|ça bloque\b|se (?:queda (?:colgad|parad|ah[ií])|cuelga))"
    r"|卡住|卡死|不动了|止まっ|固まっ|멈춰|멈춤|зависа|висит"
)
"""What people write below a log (in lower case) that has come to a stop."""
QUOTED = re.compile(r"[\"“„][^\"”“]{0,400}[\"”“]")
"""Words in quotation marks: a remark does not say them of itself."""


def is_a_question(line: str) -> bool:
    """Whether a line (in lower case) is a question of whoever pasted a log: it tells nothing about the run, though it
    may quote its lines. Programs ask too, but not for themselves: `Cannot connect. Is the daemon running?`"""
    return (_ends_as_a_question(line) and _ASKING.match(line) is not None) or _PLEA.match(line) is not None


def is_of_a_person(line: str) -> bool:
    """Whether a line (in lower case) at the end of a log is a remark of whoever pasted it."""
    told = _ends_as_a_question(line) or (
        _FIRST_PERSON.search(line) is not None and len(line.split()) >= WORDS_OF_A_REMARK
    )
    return told or is_a_question(line)


def _ends_as_a_question(line: str) -> bool:
    return line.rstrip("\"'”」) ").endswith(("?", "？"))
