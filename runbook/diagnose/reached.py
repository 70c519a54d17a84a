"""How far a run got by its own lines: a log that says nothing of failure is healthy only if something shows that it went on."""

from __future__ import annotations

import re
from enum import IntEnum


class Reached(IntEnum):
    """The best that any line of the logs shows."""

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
"""What stands on a line that shows no progress, whatever else it says."""

PROGRESS = re.compile(
    BAD + rb"(?:.*?(?:"
    # an end
    rb"\b(?:done|finished|succeeded|exiting)\b|(?<!barrier )(?<!init )\b(?:complete[ds]?|successful(?:ly)?|success)\b(?! (?:connected|initiali[sz]ed|store|loaded|start\w*))|\bexit(?:ed)?\b.{0,16}\b(?:code|status)?[ =:]*0\b"
    rb"|\bcode: 0\b|\bsaved?\b.{0,20}\b(?:checkpoint|model|to)\b|\bgoodbye\b|destroy_process_group\(\) was not called|has NOT been destroyed before|destroy complete|\bfailed=0\b|\b\d+ passed\b"
    # a result
    rb"|all_?reduce ok|avg bus bandwidth|\b\d+ packets transmitted|\b(?:accuracy|acc|perplexity|ppl|throughput|\w+[ _](?:error|err|acc|loss))\W{0,4}\d|\b(?:[GMT]B/s|TFLOPS?|examples/s|images/s|img/s|ms/step)\b"
    rb"|(?:^|\s)\d+\s+\d+\s+[a-z]\w*\s+(?:\w+\s+)?-?\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+\b"
    # on the way
    rb"|\b\d+%\s?\||\[\d+:\d\d<|\bin the forward pass\b|(?<!-)\b(?:batch|global_step|iter(?:ation)?|step|epoch)\W{0,5}\d|\"(?:step|epoch|loss)\""
    rb"))",
    re.IGNORECASE | re.DOTALL,
)
"""A line of a run that trained, measured or came to its end."""

TESTS_PASSED = re.compile(
    BAD
    + rb"(?:=* *\d+ passed\b.* in [\d.]+ ?m?s|OK(?: \((?:skipped|expected failures)=\d+.*\))?\s*$|\[  PASSED  \] \d+ test)",
    re.IGNORECASE,
)
"""A suite of tests says at its end that all of them passed: what they printed before was on purpose."""

ENDED = re.compile(
    BAD
    + rb"(?:.*?\b(?:training|run|job|benchmark|evaluation|everything|all|program)\b.{0,24}\b(?:done|finished|complete[ds]?|succeeded)\b|.*?\bexited with (?:code|status) 0\b|.*?\bTrainer\.fit\W{1,3}stopped\b)",
    re.IGNORECASE | re.DOTALL,
)
"""A run says at its end that it is over, and well."""

SETUP = re.compile(
    rb"\A(?:.*?(?:"
    # ranks met
    rb"init complete|all ranks joined|completed store-based barrier|all \w+ processes registered|process(?:es)? registered|\bconnected (?:to|all|with|after)\b|\bsuccessfully connected\b"
    rb"|\b(?:I am|rank|process|worker|task|node) \d+ ?(?:of|out of|/) ?\d+|hostname of the client socket cannot be retrieved|connection established|authentication succeeded|accepted (?:publickey|password|connection)"
    # NCCL and its like are past their bootstrap
    rb"|\busing (?:internal )?network\b|\bNET/\w+ ?: Using \[?\d|\bNET : Using interface\b|\bvia (?:P2P|SHM|NET|direct)|\b(?:Ring|Channel|Tree)s? \d+|\bconnected all\b|\bNVLS comm|peer access already|\(0x2c0\)|MNNVL|\btrees?\b (?:enabled|disabled)"
    rb"|running collective|collective backend"
    # a service runs, or a system's own log
    rb"|\b(?:startup complete|server is ready|ready to serve|listening (?:on|at)|running on http|uvicorn running)|\b(?:started|ready|running)\b|\bkernel: |\bsystemd\[\d+\]|\bNVRM\b"
    rb"))",
    re.IGNORECASE | re.DOTALL,
)
"""A line of a run that is more than begun."""


LITERALS = tuple(
    "done|finish|succe|exit|complete|code: |save|goodbye|destroy|failed=|passed|reduce ok|bandwidth|packets transmitted|acc|perplexity|ppl|throughput|error|err |_err|loss|b/s|flop|examples/s"
    "|images/s|img/s|ms/step|float|half|double|int|%|:|forward pass|batch|step|iter|epoch|joined|barrier|registered|connect|i am |rank|process|worker|task|node|hostname|accepted|using|via|ring|channel|tree|nvls"
    "|peer access|x2c|mnnvl|collective|ready|listen|running|started|kernel|systemd|nvrm".replace("|:|", "|").split("|")
)
"""A line without any of these shows neither."""


def reached(line: bytes, goes_on: bool) -> Reached:
    """How far the run was that printed this line; `goes_on`: it tells of training."""
    if (goes_on and b"has connected to" not in line) or PROGRESS.match(line):
        return Reached.PROGRESS
    return Reached.SETUP if SETUP.match(line) else Reached.NOTHING
