"""No template takes all memory or all day: whatever it asks for, it is computed or refused, in little time and memory.

They are filled in by a process with limits of its own, since one that gets through would take this machine with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from profiles import examples

from runbook.files.templating import fill_templates
from runbook.model.errors import FilesWrong, Span

MEMORY = 768 << 20  # bytes of address space, most of it Python's and Jinja2's own
MOST_CPU_S = 20  # then the process is ended; a budget that is spent to its end takes under one, on a slow machine a few
WORKER = """
import json, resource, sys, time
from runbook.files.templating import fill_templates, template_variables
from runbook.model.errors import FilesWrong
most, most_cpu_s = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for line in sys.stdin:
    template = json.loads(line)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + most_cpu_s, resource.RLIM_INFINITY))
    try:
        template_variables(template)
        said = {"size": len(str(fill_templates(template, {"word": "node-a", "number": 8, "words": ["a", "b"]})))}
    except FilesWrong as wrong:
        said = {"problem": wrong.problems[0].id, "message": wrong.problems[0].message}
    print(json.dumps(said), flush=True)
"""


@dataclass
class Worker:
    process: subprocess.Popen[str]

    def fill(self, template: str) -> dict[str, object]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        answer = self._answer(self.process.stdin, self.process.stdout, template)
        assert answer, f"the process ended over {template!r}"
        told: dict[str, object] = json.loads(answer)
        return told

    @staticmethod
    def _answer(to: IO[str], back: IO[str], template: str) -> str:
        to.write(json.dumps(template) + "\n")
        to.flush()
        return back.readline()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    command = [sys.executable, "-c", WORKER, str(MEMORY), str(MOST_CPU_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Worker(process)
        process.kill()


NUMBERS = st.sampled_from(["1", "7", "-3", "64", "1000", "99999", "10**6", "10**9", "2**62", "number", "1.5"])
TEXTS = st.sampled_from(
    ["'a'", "word", "'\\t'", "'a\\nb'", "'%d'", "'%999999999d'", "'%*d'", "'{:999999999}'", "'{:{}}'", "'%s' * 9999"]
)
LISTS = st.sampled_from(["words", "range(99999)", "[1]", "[words, words]", "[[1]] * 9999", "{'a': words}"])


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    filters = st.sampled_from(
        [
            *(
                "upper",
                "list",
                "join",
                "string",
                "tojson",
                "pprint",
                "length",
                "sum",
                "sort",
                "unique",
                "title",
                "e",
                "int",
            ),
            *("urlize", "urlencode", "striptags", "wordwrap(1)", "indent(10**9)", "indent(9999)", "center(10**9)"),
            *("batch(10**9, 'x') | list", "slice(10**9) | list", "round(10**9, 'floor')", "tojson(indent=10**7)"),
            *("map('center', 99999) | list", "map('string') | join", "join('b' * 99999)", "replace('a', 'b' * 99999)"),
            *("wordwrap(1, wrapstring='x' * 99999)", "format(10**9, 1)", "xmlattr", "truncate(10**9)", "groupby(0)"),
        ]
    )
    methods = st.sampled_from(
        [
            *("ljust(10**9)", "rjust(999999)", "center(10**9, 'x')", "zfill(10**9)", "expandtabs(10**9)"),
            *("replace('a', 'b' * 999999)", "join('b' * 999999)", "format(1, 10**9)", "translate({97: 'b' * 999999})"),
            *("encode().ljust(10**9)", "to_bytes(10**9, 'big')", "split('')", "splitlines()", "bit_length()"),
        ]
    )
    operators = st.sampled_from(["+", "-", "*", "**", "%", "//", "/", "~", "==", "in", "<"])
    return st.one_of(
        st.builds("({}) {} ({})".format, inner, operators, inner),
        st.builds("({}) | {}".format, inner, filters),
        st.builds("({}).{}".format, inner, methods),
        st.builds("[{0}, {1}, {0}]".format, inner, inner),
        st.builds("({})[{}:]".format, inner, NUMBERS),
    )


EXPRESSIONS = st.recursive(NUMBERS | TEXTS | LISTS, grown, max_leaves=8)


def nested(body: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    many = st.sampled_from(
        ["range(99999)", "'a' * 99999", "words * 9999", "[1] * 99999", "range(99999) | map('string')"]
    )
    return st.one_of(
        st.builds("{{% for i in {} %}}{}{{% endfor %}}".format, many, body),
        st.builds("{{% for i in {} if false %}}{}{{% endfor %}}".format, many, body),
        st.builds("{{% for i in {} %}}{}{{{{ loop.index }}}}{{% endfor %}}".format, many, body),
        st.builds("{{% for i in words recursive %}}{}{{{{ loop(words) }}}}{{% endfor %}}".format, body),
        st.builds("{{% macro f(n) %}}{}{{% if n %}}{{{{ f(n-1) ~ f(n-1) }}}}{{% endif %}}{{% endmacro %}}{{{{ f(60) }}}}".format, body),
        st.builds("{{% set a = 'ab' %}}{}{{{{ a | length }}}}".format, st.sampled_from(["{% set a = a ~ a %}" * 60, "{% set a = a + a %}" * 60])),
        st.builds("{{% set a = words %}}{}{{{{ a }}}}".format, st.sampled_from(["{% set a = [a, a, a] %}" * 40, "{% set a = {1: a, 2: a} %}" * 40])),
        st.builds("{{% set a %}}{}{{% endset %}}{{{{ a | length }}}}".format, body),
        st.builds("{{% filter {} %}}{}{{% endfilter %}}".format, st.sampled_from(["center(10**9)", "indent(10**8)", "upper"]), body),
    )  # fmt: skip


TEMPLATES = st.recursive(
    st.builds("{{{{ {} }}}}".format, EXPRESSIONS) | st.just("x" * 1000), nested, max_leaves=4
) | st.builds(
    lambda mark, times: mark * times,
    st.sampled_from(["{{", "{% if x %}", "{{ ((", "{{ 1+", "{#", "{{ [["]),
    st.integers(1, 20_000),
)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(template=TEMPLATES)
def test_any_template_is_computed_or_refused_within_bounds(worker: Worker, template: str) -> None:
    told = worker.fill(template)
    if "problem" in told:
        assert str(told["problem"]).startswith("template."), (template, told)
        assert "MemoryError" not in str(told["message"])
    else:
        assert int(str(told["size"])) < 12_000_000  # a million of items as text


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ (range(99999) | list) * 99999 }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 2 ** 64 ** 64 }}",
        "{% set a = 'ab' %}" + "{% set a = a ~ a %}" * 60 + "{{ a }}",
    ],
)
def test_a_bound_is_told_with_its_place(template: str) -> None:
    place = Span("playbook.yml", 7, 12)
    with pytest.raises(FilesWrong) as raised:
        fill_templates(template, {}, place)
    (problem,) = raised.value.problems
    assert problem.id == "template.failed"
    assert problem.span == place
    assert "is too much work: " in problem.message


@pytest.mark.parametrize(
    "template",
    [
        "{{ range(90000) | map('string') | join('b' * 300000) | length }}",
        "{{ range(90000) | select | join('b' * 300000) | length }}",
        "{{ ('b' * 300000).join(range(90000) | map('string')) | length }}",
        "{% for i in range(90000) %}{% if loop.first %}{{ loop | join('b' * 300000) | length }}{% endif %}{% endfor %}",
        "{{ range(30000) | map('string') | map('list') | sum(start=[]) | length }}",
    ],
)
def test_what_is_made_one_by_one_is_bounded_as_a_list_is(worker: Worker, template: str) -> None:
    told = worker.fill(template)
    assert told["problem"] == "template.failed", told
    assert "is too much work: " in str(told["message"]), told


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{% for n in range(1000) %}{{ n }},{% endfor %}", "".join(f"{n}," for n in range(1000))),
        ("{{ 'ab'.ljust(4, '-') }}", "ab--"),
        ("{{ '%5.1f' % 2.25 }}|{{ '{:>4}'.format(7) }}", "  2.2|   7"),
        ("{{ range(5) | map('string') | join('-') }}", "0-1-2-3-4"),
        ("{% for a in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ '' if loop.last else ' ' }}{% endfor %}", "1/3 2/3 3/3"),
        ("{% macro both(a) %}{{ a ~ a }}{% endmacro %}{{ both('x') }}!", "xx!"),
        ("{{ 'a,b' | replace(',', ' ') | upper }}.", "A B."),
        ("{{ '+'.join([1, 2] | map('string')) }} {{ [3, 1] | map('abs') | sum }} {{ [1, 2, 3] | batch(2) | list }}", "1+2 4 [[1, 2], [3]]"),
    ],
)  # fmt: skip
def test_what_people_write_is_computed_as_ever(template: str, filled: str) -> None:
    assert fill_templates(template, {}) == filled
