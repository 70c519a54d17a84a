from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.files.templating import condition_holds, fill_templates, template_variables
from runbook.model.errors import FilesWrong, Span
from runbook.model.secrets import Secret

VARIABLES: dict[str, object] = {"iterations": 20, "name": "lab", "sizes": ["1K", "1M"], "on": True, "map": {"a": 1}}


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("{{ iterations }}", 20),
        ("{{iterations}}", 20),
        ("{{- iterations -}}", 20),
        ("{{ -iterations }}", -20),
        ("{{- -iterations }}", -20),
        ("{{ iterations * 2 }}", 40),
        ("{{ iterations / 8 }}", 2.5),
        ("n={{ iterations }}", "n=20"),
        ("{{ name }}-{{ iterations }}", "lab-20"),
        ("{{ iterations }} ", "20 "),
        ("{{ '{{ no }}' }}", "{{ no }}"),
        ("{{ sizes }}", ["1K", "1M"]),
        ("{{ sizes | map('lower') }}", ["1k", "1m"]),
        ("{{ map }}", {"a": 1}),
        ("{{ on }}", True),
        ("--amp={{ on }}", "--amp=true"),
        ("{{ none }}", None),
        ("{{ '0644' }}", "0644"),
        ("{{ missing | default(3) }}", 3),
        ("{% if on %}yes{% endif %}\n", "yes\n"),
        ("no template", "no template"),
        (5, 5),
        ({"a": ["{{ iterations }}", {"b": "{{ name }}"}]}, {"a": [20, {"b": "lab"}]}),
    ],
)
def test_filling(value: object, filled: object) -> None:
    found = fill_templates(value, VARIABLES)
    assert found == filled
    assert type(found) is type(filled)


@pytest.mark.parametrize(
    ("value", "id"),
    [
        ("{{ iteration }}", "template.undefined"),
        ("x {{ iteration }}", "template.undefined"),
        ("{{ map.b }}", "template.undefined"),
        ("{{ [iteration] }}", "template.undefined"),
        ("{{ iterations", "template.syntax"),
        ("{{ iterations | nope }}", "template.syntax"),
        ("{{ 1 / 0 }}", "template.failed"),
        ("{{ name + 1 }}", "template.failed"),
        ("{{ range }}", "template.failed"),
        ("{{ 'a' * 10 ** 12 }}", "template.failed"),
        ("{{ 9 ** 9 ** 99 }}", "template.failed"),
        ("{{ range(10 ** 9) }}", "template.failed"),
        ("{% include '/etc/passwd' %}", "template.failed"),
        ("{% import 'os' as os %}", "template.failed"),
        ("{{ ''.__class__.__mro__ }}", "template.forbidden"),
        ("{{ name.__class__ }}", "template.forbidden"),
        ("{{ (name | attr('__class__')).__mro__ }}", "template.forbidden"),
        ("{{ sizes.append('x') }}", "template.forbidden"),
        ("{{ lipsum.__globals__ }}", "template.undefined"),
        ("{{ cycler.__init__ }}", "template.forbidden"),
        ("{{ '%s'.__format__ }}", "template.forbidden"),
        ("{{ '{0.__class__}'.format(name) }}", "template.forbidden"),
        ("{{ environ }}", "template.undefined"),
        ("{{ self }}", "template.failed"),
    ],
)
def test_what_cannot_be_filled(value: str, id: str) -> None:
    span = Span("p.yml", 3, 9)
    with pytest.raises(FilesWrong) as wrong:
        fill_templates(value, VARIABLES, span)
    (problem,) = wrong.value.problems
    assert (problem.id, problem.span) == (id, span)


def test_a_variable_of_ansible_is_told_by_our_name() -> None:
    with pytest.raises(FilesWrong) as wrong:
        fill_templates("{{ inventory_hostname }}:{{ x }}", VARIABLES)
    assert wrong.value.problems[0].help == "in the commands of shell and launch stages that is `node`"


def test_an_undefined_variable_gets_a_suggestion() -> None:
    with pytest.raises(FilesWrong) as wrong:
        fill_templates({"a": "{{ iteration }}", "b": "{{ nam }}"}, VARIABLES)
    assert [(problem.message, problem.help) for problem in wrong.value.problems] == [
        ("the variable `iteration` is not defined", "did you mean `iterations`?"),
        ("the variable `nam` is not defined", "did you mean `name`?"),
    ]


def test_a_secret_does_not_become_text() -> None:
    with pytest.raises(FilesWrong):
        fill_templates("{{ token }}", {"token": Secret("hunter2", "x")})
    assert "hunter2" not in fill_templates("{{ token }}.", {"token": Secret("hunter2", "x")})


def test_the_environment_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RUNBOOK_TEST", "here")
    with pytest.raises(FilesWrong):
        fill_templates("{{ RUNBOOK_TEST }}", {})


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("iterations > 10", True),
        ("iterations > 30", False),
        ("{{ on }}", True),
        ("missing is defined", False),
        ("true", True),
        ("False", False),
        ("name == 'lab' and '1K' in sizes", True),
        (" not on ", False),
    ],
)
def test_truth(expression: str, holds: bool) -> None:
    assert condition_holds(expression, VARIABLES) is holds


@pytest.mark.parametrize("expression", ["name", "iterations", "sizes", "map", "none", "'false'"])
def test_only_true_and_false_are_conditions(expression: str) -> None:
    with pytest.raises(FilesWrong) as wrong:
        condition_holds(expression, VARIABLES)
    assert wrong.value.problems[0].id == "template.not-a-condition"


@pytest.mark.parametrize("expression", ["", "missing > 1", "iterations >", "on }} {{ on"])
def test_conditions_that_cannot_be_judged(expression: str) -> None:
    with pytest.raises(FilesWrong):
        condition_holds(expression, VARIABLES)


def test_the_names_a_value_uses() -> None:
    assert template_variables(
        {"a": ["{{ x + y }}", "{% for i in z %}{{ i }}{% endfor %}"], "b": "{{ (", "c": 1}
    ) == set("xyz")


@given(st.text(alphabet=st.sampled_from("{}%#-+ ax1.'\"|()[]\n"), max_size=30))
def test_nothing_but_files_wrong_is_raised(text: str) -> None:
    try:
        fill_templates(text, {"a": 1, "x": "y"})
        condition_holds(text, {"a": 1, "x": "y"})
    except FilesWrong:
        pass


@pytest.mark.parametrize(
    ("condition", "help"),
    [
        ("yes", "write `true`"),
        ("OFF", "write `false`"),
        ("x = 1", "compared by `==`"),
        ("x && y", "`and`"),
    ],
)
def test_a_condition_in_another_hand(condition: str, help: str) -> None:
    with pytest.raises(FilesWrong) as wrong:
        condition_holds(condition, {"x": 1, "y": True})
    assert help in (wrong.value.problems[0].help or "")
