"""What is wrong with the stages of a playbook: what the planner refuses, and what could be planned but makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from runbook.lint.rules.playbook.command_arguments import jax_on_windows, loopback_in_command, rank_in_command
from runbook.lint.rules.playbook.conditions import never_runs
from runbook.lint.rules.playbook.gates import gate_too_high, gate_too_small, one_rank
from runbook.lint.rules.playbook.launch_commands import (
    flag_with_value,
    nested_launcher,
    one_word_command,
    shell_in_command,
    workdir_of_launch,
)
from runbook.lint.rules.playbook.launches import (
    barrier_folder_unused,
    barrier_not_expanded,
    barrier_not_shared,
    detached,
    grace_above_timeout,
    launch_on_windows,
    retries_above_timeout,
    spares_do_nothing,
    stage_after_detached,
    unchecked_launch,
    watch_does_nothing,
)
from runbook.lint.rules.playbook.scripts import scripts
from runbook.lint.rules.playbook.shell_lines import background_shell, endless_shell, interactive_shell, quoted_template
from runbook.lint.rules.playbook.timeouts import ansible_tag, timeouts
from runbook.lint.staging import Staged, stage_by_stage
from runbook.lint.subject import PlaybookFile
from runbook.model.errors import Problem


def reach_listed(stage: Staged) -> Iterator[Problem]:
    if stage.stage.check == "reach" and stage.sound():
        message = "`reach` always runs first and need not be listed: it runs once"
        yield Problem("playbook.reach-listed", message, stage.span(), "remove this stage")


STAGE_RULES: tuple[Callable[[Staged], Iterable[Problem]], ...] = (
    reach_listed,
    never_runs,
    one_rank,
    gate_too_high,
    gate_too_small,
    timeouts,
    ansible_tag,
    scripts,
    one_word_command,
    shell_in_command,
    flag_with_value,
    nested_launcher,
    workdir_of_launch,
    rank_in_command,
    loopback_in_command,
    jax_on_windows,
    detached,
    spares_do_nothing,
    watch_does_nothing,
    retries_above_timeout,
    grace_above_timeout,
    barrier_folder_unused,
    barrier_not_shared,
    barrier_not_expanded,
    launch_on_windows,
    interactive_shell,
    endless_shell,
    background_shell,
    quoted_template,
)

ORDER_RULES: tuple[Callable[[Sequence[Staged]], Iterable[Problem]], ...] = (unchecked_launch, stage_after_detached)


def stages(file: PlaybookFile) -> Iterator[Problem]:
    staged, problems = stage_by_stage(file)
    yield from problems
    for stage in staged:
        for rule in STAGE_RULES:
            yield from rule(stage)
    for order_rule in ORDER_RULES:
        yield from order_rule(staged)
