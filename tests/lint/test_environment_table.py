"""The table of variables is sound, and agrees with itself and with the rules."""

from __future__ import annotations

import re

from cases import try_each

from runbook.lint.rules.environment_names import name_faults
from runbook.lint.rules.environment_values import value_faults
from runbook.lint.variables import Variable, known_variables

KINDS = {
    "integer", "number", "switch", "boolean", "choice", "level", "set", "per-function",
    "interfaces", "adapters", "names", "path", "settings", "text",
}  # fmt: skip
A_MATTER_OF_TASTE = {"debugging", "fast-path-off", "slow-timeout"}
"""What is said of a value that the reader understands very well."""


def understood(variable: Variable) -> list[str]:
    """Values that the reader takes, after the table."""
    low, high = variable.lowest, variable.highest
    numbers = [str(number) for number in (low, high) if number is not None]
    words = {
        "integer": numbers or ["0", "17"],
        "number": numbers or ["0.5", "2"],
        "switch": ["0", "1"],
        "boolean": ["0", "1", "true", "False", "yes", "n"],
        "choice": [*variable.choices, *variable.hidden_choices],
        "level": list(variable.choices),
        "set": [*variable.choices, variable.separator.join(variable.choices[:3]), f"^{variable.choices[0]}"]
        if variable.choices
        else [],
        "per-function": [*variable.choices, f"^{variable.choices[0]}", f"AllReduce:{','.join(variable.choices[:2])}"]
        if variable.choices
        else [],
        "interfaces": ["eth0", "^lo,docker0", "=ens5,ens6", "^=eth1"],
        "adapters": ["mlx5", "=mlx5_1,mlx5_10", "^mlx5_0", "mlx5_0:1", "=mlx5_0:1:2"],
        "names": ["eth0", "eth0,eth1", "Ethernet 2"],
        "path": ["/tmp/x", "x"],
        "settings": ["max_split_size_mb:128", "a_newer_one:1, expandable_segments:True", f"{'x' * 90}:[256:1,>:4],y:2"],
        "text": ["", "anything"],
    }
    return words[variable.kind]


def test_every_entry_is_sound() -> None:
    try_each(known_variables().items(), is_sound)


def is_sound(variable: Variable) -> None:
    assert re.fullmatch("[A-Z][A-Z0-9_]*", variable.name)
    assert variable.kind in KINDS
    assert variable.source.startswith("https://")
    assert bool(variable.choices) == (variable.kind in ("choice", "level", "set", "per-function", "settings"))
    assert set(variable.true_or_false) <= set(variable.choices)
    assert variable.lowest is None or variable.highest is None or variable.lowest < variable.highest
    assert bool(variable.leftover) == bool(variable.costs)
    assert set(variable.leftover) <= ({"1"} if variable.kind in ("switch", "boolean") else set(variable.choices))
    assert set(variable.mistaken.values()) <= set(variable.choices)
    assert not set(variable.mistaken) & {choice.lower() for choice in variable.choices}
    assert not variable.never or variable.use


def test_what_its_reader_takes_is_not_complained_about() -> None:
    try_each(known_variables().items(), takes_what_is_understood)


def takes_what_is_understood(variable: Variable) -> None:
    if not variable.never and not variable.set_by_runbook:
        found = {(text, fault.id) for text in understood(variable) for fault in value_faults(variable.name, text)}
        assert {one for one in found if one[1] not in A_MATTER_OF_TASTE} == set()


def test_a_name_is_only_complained_about_for_a_reason() -> None:
    try_each(known_variables().items(), is_complained_about_for_a_reason)


def is_complained_about_for_a_reason(variable: Variable) -> None:
    found = [fault.id for fault in name_faults(variable.name)]
    if variable.set_by_runbook:
        assert found == ["set-by-runbook"]
    elif variable.never:
        assert found == ["never-existed"]
    elif variable.removed or variable.last:
        assert found in (["removed-variable"], ["deprecated-variable"])
    elif variable.deprecated:
        assert found in (["renamed-variable"], ["deprecated-variable"])
    else:
        assert found == []


def test_the_replacements_of_variables_are_variables_that_are_read() -> None:
    for variable in known_variables().values():
        if variable.use and re.fullmatch("[A-Z_0-9]+", variable.use):
            successor = known_variables()[variable.use]
            assert (successor.never, successor.removed, successor.last) == (False, None, None), variable.name


def test_the_families_that_are_asked_for_are_there() -> None:
    for prefix, least in {"NCCL_": 270, "TORCH_NCCL_": 25, "GLOO_": 8, "JAX_": 110, "TORCHELASTIC_": 10}.items():
        assert sum(name.startswith(prefix) for name in known_variables()) >= least
