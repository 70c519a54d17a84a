"""Judges the value of one environment variable by itself, by how its reader reads it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from runbook.files.suggestions import nearest_word
from runbook.lint.rules.environment_names import VariableFault
from runbook.lint.variables import Variable, known_variables
from runbook.model.nccl_devices import Selection, is_local_only_interface, parse_device_selection

TRUE_WORDS = frozenset(("1", "t", "true", "y", "yes"))
FALSE_WORDS = frozenset(("0", "f", "false", "n", "no"))
_TRUE_LIKE_WORDS = TRUE_WORDS | {"on", "enable", "enabled"}
_FALSE_LIKE_WORDS = FALSE_WORDS | {"off", "disable", "disabled"}
_STRTOLL = re.compile(r"\A\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", re.ASCII)
_STOI = re.compile(r"\A\s*([+-]?)([0-9]+)", re.ASCII)
_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Zµ%]+)", re.ASCII)
_BYTES_BY_UNIT = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MILLISECONDS_BY_UNIT = {"ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000}
_INT64 = 1 << 63
_MAX_SHOWN_CHARACTERS = 40  # characters of a value that a message repeats


def shortened_quote(text: str) -> str:
    return f"`{text}`" if len(text) <= _MAX_SHOWN_CHARACTERS else f"`{text[:_MAX_SHOWN_CHARACTERS]}…`"


def number_read(variable: Variable, text: str) -> int | None:
    """The number that the reader takes from a text; None where it refuses the text. An empty text is no number."""
    pattern = _STRTOLL if variable.reader in ("NCCL", "CUDA") else _STOI
    found = pattern.match(text)
    if found is None:
        return 0 if variable.reader in ("NCCL", "CUDA") and text else None
    digits = found[2][:400]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if pattern is _STRTOLL and digits[0] == "0" else 10
    value = int(digits, base)
    return -value if found[1] == "-" else value


def is_switched_on(variable: Variable, text: str) -> bool:
    """Whether a switch or a boolean is switched on by this text."""
    if variable.kind == "boolean":
        return text.strip().lower() in (TRUE_WORDS | {"on"} if variable.reader == "JAX" else TRUE_WORDS)
    return text == "1" if variable.reader == "PyTorch" else number_read(variable, text) == 1


def integer_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    value = number_read(variable, text)
    reads = _reading_in_words(variable, text, value)
    bare = text.strip()
    unit = _UNIT.fullmatch(bare)
    if re.fullmatch(r"[+-]?([1-9][0-9]*|0)", bare, re.ASCII) and len(bare) < 400:
        yield from _range_faults(variable, int(bare), text)
    elif re.fullmatch(r"[+-]?0[xX][0-9a-fA-F]{1,16}", bare, re.ASCII) and variable.reader == "NCCL":
        yield from _range_faults(variable, value or 0, text)
    elif unit is not None and unit[2].lower() not in ("x", "e"):
        yield VariableFault(
            "unit-in-number",
            f"`{variable.name}` is a plain number{_unit_in_words(variable)}: {reads}",
            _number_without_unit(variable, unit),
        )
    elif re.fullmatch(r"[+-]?0[0-9]+", bare, re.ASCII):
        help = f"write `{bare.lstrip('+-0') or '0'}`, without zeros in front"
        if variable.reader == "NCCL" and value != int(bare[:400]):
            yield VariableFault("not-a-number", f"a zero in front makes a number octal: {reads}", help)
    else:
        word = bare.lower()
        help = (
            f"write `{1 if word in _TRUE_LIKE_WORDS else 0}`"
            if word in _TRUE_LIKE_WORDS | _FALSE_LIKE_WORDS
            else _accepted_numbers_help(variable)
        )
        yield VariableFault("not-a-number", f"`{variable.name}` is a whole number: {reads}", help)


def switch_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """The fault of a value that should be 0 or 1. A word for off is no fault, since it is read as 0 too."""
    bare = text.strip()
    if bare in ("0", "1") or bare.lower() in _FALSE_LIKE_WORDS:
        return
    if bare.isdigit():
        reads = f"{shortened_quote(bare)} is neither"
    elif variable.reader in ("NCCL", "CUDA"):
        reads = _reading_in_words(variable, text, number_read(variable, text))
    else:
        reads = f"{variable.reader} takes `1` for on and everything else for off"
    help = "write `1`" if bare.lower() in _TRUE_LIKE_WORDS else "write `1` or `0`"
    yield VariableFault("not-a-switch", f"`{variable.name}` is 0 or 1: {reads}", help)


def boolean_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    word = text.lower()
    more = ("on", "off") if variable.reader == "JAX" else ()
    if word not in TRUE_WORDS | FALSE_WORDS and word not in more:
        message = (
            f"`{variable.name}` is true or false: {variable.reader} stops with an error at {shortened_quote(text)}"
        )
        help = (
            "write `1`"
            if word in _TRUE_LIKE_WORDS
            else "write `0`"
            if word in _FALSE_LIKE_WORDS
            else "write `1` or `0`"
        )
        yield VariableFault("not-a-switch", message, help)


def number_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    try:
        value = float(text)
    except ValueError:
        yield VariableFault(
            "not-a-number",
            f"`{variable.name}` is a number, and {shortened_quote(text)} is none",
            _accepted_numbers_help(variable),
        )
        return
    yield from _range_faults(variable, value, text)


def _range_faults(variable: Variable, value: float, text: str) -> Iterator[VariableFault]:
    low, high = variable.lowest, variable.highest
    if variable.name == "NCCL_IB_TIMEOUT" and (value == 0 or value >= 32):
        message = f"{shortened_quote(text)} means that NCCL waits for ever: a lost packet becomes a job that hangs"
        yield VariableFault(
            "endless-timeout", message, "the wait is 4 µs · 2^N for each of the retries: 20 is NCCL's own, 22 is long"
        )
    elif (low is not None and value < low) or (high is not None and value > high) or not -_INT64 <= value < _INT64:
        yield VariableFault(
            "out-of-range", f"`{variable.name}` cannot be {shortened_quote(text)}", _accepted_numbers_help(variable)
        )
    elif variable.name == "NCCL_IB_TIMEOUT" and value >= 25:
        seconds = 4.096e-6 * 2**value * 7
        message = (
            f"with {shortened_quote(text)} NCCL notices a dead link after {seconds / 60:.0f} minutes at the earliest"
        )
        help = "PyTorch gives up after 10 minutes, so the link will not be named: 22 is two minutes"
        yield VariableFault("slow-timeout", message, help)


def _reading_in_words(variable: Variable, text: str, value: int | None) -> str:
    if value is None or (variable.reader not in ("NCCL", "CUDA", "PyTorch")):
        return f"{variable.reader} stops with an error at {shortened_quote(text)}"
    return f"{variable.reader} reads {shortened_quote(text)} as {value}"


def _unit_in_words(variable: Variable) -> str:
    units = {"bytes": " of bytes", "ms": " of milliseconds", "s": " of seconds", "min": " of minutes"}
    return units.get(variable.unit or "", "")


def _number_without_unit(variable: Variable, unit: re.Match[str]) -> str:
    """The help for a number with a unit: the number in the variable's own unit, if that can be worked out."""
    size = unit[2].lower().removesuffix("ib").removesuffix("b")
    time = unit[2].lower()
    number = float(unit[1]) if len(unit[1]) < 16 else 0.0
    factor = (
        _BYTES_BY_UNIT.get(size)
        if variable.unit == "bytes"
        else _MILLISECONDS_BY_UNIT.get(time)
        if variable.unit == "ms"
        else None
    )
    if variable.unit == "s" and time in _MILLISECONDS_BY_UNIT:
        factor = _MILLISECONDS_BY_UNIT[time] // 1000
    if factor and number * factor == int(number * factor) and number:
        return f"write `{int(number * factor)}`"
    return _accepted_numbers_help(variable) if variable.unit else "write the number alone"


def _accepted_numbers_help(variable: Variable) -> str:
    low, high = variable.lowest, variable.highest
    what = "a number" if variable.kind == "number" else "a whole number"
    if low is not None and high is not None:
        return f"it takes {low} or {high}" if high - low == 1 else f"it takes {what} from {low} to {high}"
    return f"it takes {what}{_unit_in_words(variable)}" + ("" if low is None else f", {low} or more")


# Values out of a list of words: levels of logging, distances between devices, algorithms.

_LEGACY_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")  # what 0 to 4 mean; larger numbers mean the last
_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "AllToAll", "SendRecv", "Send", "Recv")


def choice_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    bare = text.strip()
    if _is_choice(variable, bare):
        return
    if variable.open_choice and bare.lower() not in variable.mistaken:
        return
    yield _bad_choice_fault(variable, bare)


def level_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """The fault of a level, how far apart two devices may be. NCCL compares letter by letter, and takes a text that
    begins with a digit for a number."""
    bare = text.strip()
    if bare in variable.choices:
        return
    if re.match("[0-9]", bare, re.ASCII):
        number = int(re.match("[0-9]{1,3}", bare, re.ASCII)[0])  # type: ignore[index]
        name = _LEGACY_LEVELS[min(number, len(_LEGACY_LEVELS) - 1)]
        message = (
            f"numbers for `{variable.name}` are the old style, and have meant different things: this one is `{name}`"
        )
        yield VariableFault("legacy-level", message, f"write `{name}`")
    else:
        yield _bad_choice_fault(variable, bare)


def set_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """The first fault of a list of words; `^` in front takes all but these."""
    for word in text.strip().removeprefix("^").split(variable.separator):
        bare = word.strip()
        if bare and not _is_choice(variable, bare):
            yield _bad_choice_fault(variable, bare)
            return


def per_function_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """The faults of algorithms by function: `Ring,Tree`, `^PAT`, or since NCCL 2.24
    `allreduce:Tree;broadcast:^Ring`."""
    for part in text.split(";"):
        function, colon, words = part.rpartition(":")
        if colon and not _is_in_any_case(function.strip(), _FUNCTIONS):
            near = nearest_word(function.strip(), _FUNCTIONS)
            message = f"{shortened_quote(function.strip())} is not a function of NCCL"
            help = f"did you mean `{near}`?" if near else f"it has {', '.join(_FUNCTIONS)}"
            yield VariableFault("bad-choice", message, help)
            return
        yield from list(set_faults(variable, words))[:1]


def settings_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """The first fault of settings such as `max_split_size_mb:128,roundup_power2_divisions:[256:1,>:4]`. A key that is
    like no key of the table may be newer, and is no fault."""
    stops, in_list = _bad_value_consequence(variable), False
    for part in text.split(",")[:_MAX_SETTINGS]:
        begins, in_list = not in_list, "]" not in part if in_list or "[" in part else False
        if not begins:
            continue
        key, colon, value = (word.strip() for word in part.partition(":"))
        if not colon or not value:
            key, _, value = (word.strip() for word in part.strip(" :").partition("="))
            help = f"write {shortened_quote(key + ':' + (value or 'VALUE'))}"
            yield VariableFault("bad-choice", f"{shortened_quote(part.strip())} is not `key:value`: {stops}", help)
            return
        if key not in variable.choices and (near := nearest_word(key, variable.choices)):
            message = f"there is no setting {shortened_quote(key)}: {stops}"
            yield VariableFault("bad-choice", message, f"did you mean `{near}`?")
            return
        if key in variable.true_or_false and value not in ("True", "False"):
            help = f"write `{key}:{value.lower() not in _FALSE_LIKE_WORDS}`: the case matters"
            yield VariableFault("bad-choice", f"`{key}` is True or False: {stops}", help)
            return


_MAX_SETTINGS = 100
"""Settings of one value that are judged."""


def _is_choice(variable: Variable, word: str) -> bool:
    if variable.exact_case:
        return word in variable.choices or word in variable.hidden_choices
    return _is_in_any_case(word, (*variable.choices, *variable.hidden_choices))


def _is_in_any_case(word: str, words: Sequence[str]) -> bool:
    return word.lower() in (one.lower() for one in words)


def _bad_choice_fault(variable: Variable, word: str) -> VariableFault:
    message = f"{shortened_quote(word)} is not a value of `{variable.name}`: {_bad_value_consequence(variable)}"
    return VariableFault("bad-choice", message, _choice_help(variable, word))


def _bad_value_consequence(variable: Variable) -> str:
    """What the reader of a variable does at a value that it does not know, for a message."""
    if variable.name == "NCCL_DEBUG":
        return "NCCL then prints nothing at all"
    if variable.name == "NCCL_NET":
        return "NCCL looks for a network of that name and stops"
    if variable.name == "TORCH_CPP_LOG_LEVEL" or (variable.reader == "gloo" and variable.name == "GLOO_LOG_LEVEL"):
        return f"{variable.reader} falls back to its default"
    if variable.reader == "NCCL" and variable.kind != "per-function":
        return "NCCL passes over it"
    return f"{variable.reader} stops with an error"


def _choice_help(variable: Variable, word: str) -> str:
    meant = variable.mistaken.get(word.lower())
    same = next((one for one in variable.choices if one.lower() == word.lower()), None)
    near = meant or same or nearest_word(word, variable.choices)
    takes = f"it takes {', '.join(variable.choices)}"
    if same is not None:
        return f"write `{same}`: the case matters"
    return f"did you mean `{near}`? {takes}" if near else takes


# Selections of network interfaces and adapters: NCCL's `^`, `=` and prefixes, and gloo's plain names.

_INTERFACE = re.compile(r"(ib|eth|bond|docker|veth|virbr)[0-9]+|lo|en[opsx][0-9]\w*", re.ASCII)
_ADAPTER = re.compile(r"mlx[45]_\d+|(bnxt_re|irdma|efa|hns|qedr|erdma)_?\d+|rdmap\d\w*|rocep\d\w*", re.ASCII)
_JOINED = re.compile(r"[^;\s][;\s]+[^;\s]")
_READ_ON_WINDOWS = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "network.interface")
"""Settings that Windows nodes read too, on which `Ethernet 2` is one name."""
_JOINED_ON_WINDOWS = re.compile(r"[^;];+[^;]|^\s*[a-z][^\W\d]*[0-9]\w*\s+[a-z][^\W\d]*[0-9]", re.ASCII)
_ADAPTER_PORT = re.compile(r"[^:]+(:[0-9]{1,4}){1,3}", re.ASCII)
_COUNTED_ADAPTER = re.compile(
    r"\A(?:\w*_[1-9]|(bnxt_re|irdma|qedr|rxe|siw)[1-9])", re.ASCII
)  # adapters count from 0, so that beside `mlx5_1` there may be `mlx5_10`
_COUNTED_INTERFACE = re.compile(r"(eth|ib)[1-9]", re.ASCII)  # not ens5, enp3s0: their numbers are slots


def interface_faults(name: str, text: str) -> Iterator[VariableFault]:
    chosen = parse_device_selection(text.strip())
    fault = _syntax_fault(name, text, chosen, "eth0,eth1") or _address_fault(name, chosen)
    adapter = next((one for one in chosen.names if _ADAPTER.fullmatch(one)), None)
    if fault is not None:
        yield fault
    elif adapter is not None:
        message = f"{shortened_quote(adapter)} is an RDMA adapter, and `{name}` takes network interfaces"
        yield VariableFault("bad-selection", message, "`ip -br link` lists them; adapters stand in NCCL_IB_HCA")
    elif not chosen.exact:
        yield from _prefix_trap_faults(chosen, _COUNTED_INTERFACE)


def adapter_faults(name: str, text: str) -> Iterator[VariableFault]:
    chosen = parse_device_selection(text.strip())
    fault = _syntax_fault(name, text, chosen, "mlx5_0,mlx5_1")
    bad_port = next((one for one in chosen.names if ":" in one and not _port_is_sound(one)), None)
    interface = next((one for one in chosen.names if _INTERFACE.fullmatch(one)), None)
    if fault is not None:
        yield fault
    elif bad_port is not None:
        message = f"{shortened_quote(bad_port)} is not an adapter with its port"
        yield VariableFault(
            "bad-selection", message, "write mlx5_0:1; ports count from 1, and without one all are taken"
        )
    elif interface is not None:
        message = f"{shortened_quote(interface)} is a network interface, and `{name}` takes RDMA adapters"
        help = "`ibstat -l` or /sys/class/infiniband list them; interfaces stand in NCCL_SOCKET_IFNAME"
        yield VariableFault("bad-selection", message, help)
    elif not chosen.exact:
        yield from _prefix_trap_faults(chosen, _COUNTED_ADAPTER)


def gloo_faults(name: str, text: str) -> Iterator[VariableFault]:
    """The fault of a selection for gloo, which takes names, letter by letter, with commas between them."""
    bare = text.strip()
    if bare.startswith(("^", "=")):
        message = f"gloo looks for an interface whose name is {shortened_quote(bare)}: `^` and `=` are NCCL's alone"
        if name == "network.interface":
            help = f"write a plain name here, and `env: {{NCCL_SOCKET_IFNAME: '{bare[:60]}'}}` for NCCL"
        else:
            help = "write the name of the interface, such as eth0"
        yield VariableFault("gloo-selector", message, help)
        return
    names = tuple(one.strip() for one in bare.split(",") if one.strip())
    chosen = Selection(excludes=False, exact=True, names=names)
    fault = _syntax_fault(name, text, chosen, "eth0,eth1") or _address_fault(name, chosen)
    if fault is not None:
        yield fault


def virtual_interface(text: str) -> str | None:
    """The first selected interface that leads to no other machine (lo, Docker's, libvirt's); None if there is none."""
    chosen = parse_device_selection(text.strip())
    return None if chosen.excludes else next(filter(is_local_only_interface, chosen.names), None)


def _syntax_fault(name: str, text: str, chosen: Selection, example: str) -> VariableFault | None:
    signs = next((one for one in chosen.names if one.startswith(("^", "="))), None)
    if text.strip().startswith("=^"):
        return VariableFault(
            "bad-selection", f"`{name}` has `^` behind `=`", "write `^=` in front: all but exactly these"
        )
    if signs is not None:
        message = f"NCCL looks for a name that begins with `{signs[0]}`: `^` and `=` stand once, before the whole list"
        names = ",".join(one.lstrip("^=") for one in chosen.names)
        return VariableFault("bad-selection", message, f"write {shortened_quote((chosen.prefix or signs[0]) + names)}")
    if not chosen.names:
        return VariableFault("bad-selection", f"`{name}` names nothing", f"write names, such as {example}")
    glob = next((one for one in chosen.names if re.search(r"[*?\[\]{}]", one)), None)
    if glob is not None:
        if name in _READ_ON_WINDOWS:
            return VariableFault(
                "bad-selection", f"{shortened_quote(glob)}: there are no wildcards here", "write the whole name"
            )
        message = f"{shortened_quote(glob)}: NCCL has no wildcards"
        return VariableFault(
            "bad-selection", message, f"every name is the beginning of one: write `{re.split(r'[*?{[]', glob)[0]}`"
        )
    run_together = _JOINED_ON_WINDOWS if name in _READ_ON_WINDOWS else _JOINED
    joined = next((one for one in chosen.names if run_together.search(one)), None)
    if joined is not None:
        commas = re.sub(r"[,;\s]+", ",", text.strip())
        help = f"put commas between: write {shortened_quote(commas)}"
        return VariableFault("bad-selection", f"{shortened_quote(joined)} is read as one name", help)
    return None


def _address_fault(name: str, chosen: Selection) -> VariableFault | None:
    for one in chosen.names:
        try:
            ipaddress.ip_interface(one)
        except ValueError:
            continue
        message = f"{shortened_quote(one)} is an address, and `{name}` takes names of interfaces"
        return VariableFault("bad-selection", message, "`ip -br addr` shows which interface has it")
    return None


def _port_is_sound(one: str) -> bool:
    return _ADAPTER_PORT.fullmatch(one) is not None and int(one.split(":")[1]) > 0


def _prefix_trap_faults(chosen: Selection, counted: re.Pattern[str]) -> Iterator[VariableFault]:
    bare = next((one for name in chosen.names if counted.fullmatch(one := name.partition(":")[0])), None)
    if bare is not None:
        verb = "leaves out" if chosen.excludes else "takes"
        message = f"{shortened_quote(bare)} is the beginning of a name: it {verb} `{bare}0` to `{bare}9` as well"
        exact = "^" * chosen.excludes + "=" + ",".join(chosen.names)
        yield VariableFault("prefix-trap", message, f"`=` makes it exact: write {shortened_quote(exact)}")


# The value of a variable, judged as its kind is read.

_CHECK_BY_KIND: Mapping[str, Callable[[Variable, str], Iterator[VariableFault]]] = {
    "integer": integer_faults,
    "number": number_faults,
    "switch": switch_faults,
    "boolean": boolean_faults,
    "choice": choice_faults,
    "level": level_faults,
    "set": set_faults,
    "per-function": per_function_faults,
    "settings": settings_faults,
    "interfaces": lambda variable, text: interface_faults(variable.name, text),
    "adapters": lambda variable, text: adapter_faults(variable.name, text),
    "names": lambda variable, text: gloo_faults(variable.name, text),
}
_SPACE_SENSITIVE_KINDS = (
    "choice",
    "set",
    "level",
    "per-function",
    "interfaces",
    "adapters",
    "names",
    "boolean",
    "path",
)
_KINDS_REFUSING_EMPTY = ("integer", "number", "switch", "boolean", "choice")
_SHELL_VARIABLE = re.compile(
    r"(?:^|[/:=,;\s\"'])(\$[A-Z_][A-Z0-9_]+|%[A-Z_][A-Z0-9_]{3,}%)|(\$\{[A-Z_][A-Z0-9_]*\})", re.ASCII
)


def value_faults(name: str, text: str) -> Iterator[VariableFault]:
    """The faults of a variable's value. An empty text is a fault only if it stops the program; otherwise the rest of
    the file decides."""
    yield from _expansion_faults(name, text)
    variable = known_variables().get(name)
    if variable is None or variable.never or variable.set_by_runbook:
        return
    if not text:
        if _refuses_empty(variable):
            message = f"`{name}` is empty, and {variable.reader} stops with an error at that"
            yield VariableFault(
                "not-a-number" if variable.kind in ("integer", "number") else "bad-choice", message, "leave it out"
            )
        return
    if variable.kind in _SPACE_SENSITIVE_KINDS:
        yield from _stray_space_faults(variable, text)
    if variable.kind in _CHECK_BY_KIND and text.strip():
        yield from _CHECK_BY_KIND[variable.kind](
            variable, text.strip() if variable.kind in _SPACE_SENSITIVE_KINDS else text
        )
    yield from _left_on_faults(variable, text)


def _refuses_empty(variable: Variable) -> bool:
    """Whether the reader ends the program at an empty value. As tried with PyTorch 2.13: its numbers, booleans and
    choices do, and gloo's transport too."""
    if variable.name in ("TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES", "GLOO_LOG_LEVEL"):
        return False
    return (
        variable.reader in ("PyTorch", "JAX", "gloo")
        and variable.kind in _KINDS_REFUSING_EMPTY
        and variable.kind != "switch"
    )


def _expansion_faults(name: str, text: str) -> Iterator[VariableFault]:
    """Reports a value with text that only a shell would replace."""
    variable = known_variables().get(name)
    if "$" in text or "%" in text:
        found = _SHELL_VARIABLE.search(text)
        if found is not None:
            message = (
                f"{shortened_quote(found[1] or found[2])} is not replaced: values reach the program letter by letter"
            )
            name = found[0].strip("${}%")
            alone = found[0] == text.strip() and name.isidentifier()
            help = f"; `{{env: {name}}}` takes yours, from where runbook is started" if alone else ""
            yield VariableFault("not-expanded", message, f"write out its value on the node{help}")
    elif text.startswith("~") and variable is not None and variable.kind == "path":
        message = f"{variable.reader} does not know `~`, and no shell sees this value"
        yield VariableFault("not-expanded", message, "write the path in full")


def _stray_space_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    if text != text.strip():
        message = (
            f"a space belongs to the value {shortened_quote(text)}, and {variable.reader} takes it as part of the name"
        )
        yield VariableFault("stray-space", message, f"write {shortened_quote(text.strip())}")
    elif variable.kind not in ("choice", "boolean", "path") and re.search(r"[,;]\s|\s[,;]", text):
        tight = "".join(part.strip() for part in re.split(r"([,;])", text))
        message = (
            f"there are spaces around the commas of {shortened_quote(text)}, "
            f"and {variable.reader} takes them as part of the names"
        )
        yield VariableFault("stray-space", message, f"write {shortened_quote(tight)}")


def _left_on_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """Reports a variable that helps to find a fault, and costs time in every job."""
    on = variable.kind in ("switch", "boolean") and is_switched_on(variable, text)
    if variable.turns_off and on:
        message = f"`{variable.name}` switches off {variable.turns_off}"
        yield VariableFault(
            "fast-path-off", message, "it is for finding out whether that is what fails: take it out afterwards"
        )
    if variable.leftover and (on or _has_leftover(variable, text)):
        message = f"`{variable.name}={text[:40]}` is for debugging: it {variable.costs}"
        yield VariableFault("debugging", message, "take it out when the fault is found")


def _has_leftover(variable: Variable, text: str) -> bool:
    if variable.kind in ("switch", "boolean") or text.startswith("^"):
        return False
    words = text.split(variable.separator) if variable.kind == "set" else [text]
    return any(word.strip().upper() in variable.leftover for word in words)
