"""Completion scripts for bash, zsh and fish, written from the argparse tree: they complete what the parser accepts.

The scripts are static: pressing Tab never starts Python.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from runbook.cli.argument_parser import parser
from runbook.files.shipped_files import shipped_names
from runbook.report.standard_streams import stdout

Shell = Literal["bash", "zsh", "fish"]
Kind = Literal["words", "files", "folders", "playbooks", "yaml", "nothing"]

# The kind of a value, by its metavar (or dest) in capitals; numbers complete to nothing, anything else to files.
KINDS: Mapping[str, Kind] = {
    "PLAYBOOK": "playbooks",
    "INV": "yaml",
    "INVENTORY": "yaml",
    "DIR": "folders",
    "FOLDER": "folders",
    **dict.fromkeys(
        (
            "PATTERN",
            "TAGS",
            "STAGE",
            "K=V",
            "KEY=VALUE",
            "FORKS",
            "N",
            "ID",
            "NODE",
            "NODES",
            "SECONDS",
            "NAME",
            "KEY",
            "HOST",
        ),
        "nothing",
    ),
}


@dataclass(frozen=True, slots=True)
class Value:
    """What may stand in one place."""

    kind: Kind
    words: tuple[tuple[str, str], ...] = ()  # (word, what it means)
    name: str = ""
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    flags: tuple[str, ...]
    help: str
    value: Value | None
    repeats: bool


@dataclass(frozen=True, slots=True)
class Command:
    """One parser of the tree; its path is what stands before its arguments, without the program's name."""

    path: tuple[str, ...]
    options: tuple[Option, ...]
    places: tuple[Value, ...]
    children: tuple[str, ...]

    @property
    def key(self) -> str:
        return " ".join(self.path)


def print_completion(arguments: argparse.Namespace) -> int:
    stdout.tell(completion(parser(), arguments.shell, shipped=shipped_names("playbooks")))
    return 0


def completion(root: argparse.ArgumentParser, shell: Shell, shipped: Sequence[str] = ()) -> str:
    """The script that teaches `shell` this parser; `shipped` are names of playbooks that come with the package."""
    write: Mapping[Shell, Callable[[str, list[Command], Sequence[str]], str]] = {
        "bash": _bash,
        "zsh": _zsh,
        "fish": _fish,
    }
    return write[shell](root.prog.split()[0], list(_commands(root, ())), tuple(shipped))


# The tree ----------------------------------------------------------------------------------------------------------


def _commands(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[Command]:
    options: list[Option] = []
    places: list[Value] = []
    children: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            meanings = {choice.dest: choice.help or "" for choice in action._choices_actions}
            children.update(action.choices)
            shown = tuple((name, _sentence(meanings.get(name, ""))) for name in action.choices)
            places.append(Value("words", shown, "command"))
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            value = None if action.nargs == 0 else _value(action)
            again = isinstance(action, argparse._AppendAction | argparse._CountAction)
            options.append(Option(tuple(action.option_strings), _sentence(action.help), value, again))
        else:
            places.append(_value(action))
    yield Command(path, tuple(options), tuple(places), tuple(children))
    for name, child in children.items():
        yield from _commands(child, (*path, name))


def _value(action: argparse.Action) -> Value:
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    repeats = action.nargs in ("*", "+", argparse.REMAINDER)
    if action.choices is not None:
        return Value("words", tuple((str(choice), "") for choice in action.choices), name, repeats)
    if action.type in (int, float):
        return Value("nothing", (), name, repeats)
    return Value(KINDS.get(name.upper(), "files"), (), name, repeats)


def _sentence(help: str | None) -> str:
    """The help on one line, without argparse's placeholders and the brackets that hold them."""
    bare = re.sub(r"\([^()]*%\(\w+\)s[^()]*\)|%\(\w+\)s", "", help or "")
    return " ".join(bare.replace("%%", "%").split())


def _identifier(text: str) -> str:
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def _quote(text: str) -> str:
    """One word for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


# bash --------------------------------------------------------------------------------------------------------------

BASH = """\
# bash completion for @prog@: eval "$(@prog@ completion bash)"
@id@_words() {
    local word
    for word in "$@"; do
        [[ $word == "$cur"* ]] && COMPREPLY+=("$(printf '%q' "$word")")
    done
}
@id@_paths() {  # files, folders or yaml
    local path
    compopt -o filenames 2>/dev/null
    while IFS= read -r path; do
        case "$1:$path" in
            files:* | yaml:*.yml | yaml:*.yaml) ;;
            *) [[ -d ${path/#~\\//$HOME/} ]] || continue ;;
        esac
        COMPREPLY+=("$path")
    done < <(compgen -f -- "$cur")
}
@id@_complete() {
    local cur=${COMP_WORDS[COMP_CWORD]} command='' waits='' ended='' place=0 word i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ -n $waits ]]; then
            [[ $word == '=' ]] || waits=''  # bash makes three words of --option=value
            continue
        fi
        if [[ -z $ended ]]; then
            case "$command|$word" in
@steps@
                *'|--') ended=1; continue ;;
                *'|'-?*) continue ;;
            esac
        fi
        place=$((place + 1))
    done
    [[ $cur == '=' ]] && cur=''
    if [[ -n $waits ]]; then
        case "$waits" in
@values@
        esac
        return
    fi
    if [[ $cur == -* && -z $ended ]]; then
        case "$command" in
@options@
        esac
        return
    fi
    case "$command|$place" in
@places@
    esac
}
complete -F @id@_complete @prog@
"""


def _bash(prog: str, commands: list[Command], shipped: Sequence[str]) -> str:
    name = "_" + _identifier(prog)

    def reply(value: Value) -> str:
        match value.kind:
            case "words":
                return f"{name}_words {' '.join(_quote(word) for word, _ in value.words)}"
            case "playbooks":
                return f"{name}_words {' '.join(map(_quote, shipped))}; {name}_paths yaml"
            case "nothing":
                return ":"
            case kind:
                return f"{name}_paths {kind}"

    steps, values, options, places = [], [], [], []
    for command in commands:
        for child in command.children:
            path = " ".join((*command.path, child))
            steps.append(f"{_quote(f'{command.key}|{child}')}) command={_quote(path)}; place=0; continue ;;")
        for option in command.options:
            if option.value:
                keys = "|".join(_quote(f"{command.key}|{flag}") for flag in option.flags)
                steps.append(f'{keys}) waits="$command|$word"; continue ;;')
                values.append(f"{keys}) {reply(option.value)} ;;")
        flags = " ".join(_quote(flag) for option in command.options for flag in option.flags)
        options.append(f"{_quote(command.key)}) {name}_words {flags} ;;")
        for number, place in enumerate(command.places):
            key = f"{_quote(command.key + '|')}*" if place.repeats else _quote(f"{command.key}|{number}")
            places.append(f"{key}) {reply(place)} ;;")
    return _fill(
        BASH,
        prog=prog,
        id=name,
        steps=_indented(steps, 16),
        values=_indented(values, 12),
        options=_indented(options, 12),
        places=_indented(places, 8),
    )


# zsh ---------------------------------------------------------------------------------------------------------------

ZSH = """\
#compdef @prog@
# zsh completion for @prog@: source <(@prog@ completion zsh), after compinit
@functions@

if [[ $funcstack[1] == @id@ ]]; then
    @id@ "$@"
else
    compdef @id@ @prog@
fi
"""

ZSH_COMMAND = """\
@function@() {
    local curcontext=$curcontext state line ret=1
    typeset -A opt_args
    _arguments -C -S @specs@ && ret=0
@descent@    return ret
}"""

ZSH_DESCENT = """\
    case $state in
        command)
            local -a commands
            commands=(@words@)
            _describe -t commands command commands && ret=0 ;;
        rest)
            curcontext="${curcontext%:*:*}:@prog@-$line[1]:"
            case $line[1] in
@children@
            esac ;;
    esac
"""


def _zsh(prog: str, commands: list[Command], shipped: Sequence[str]) -> str:
    name = "_" + _identifier(prog)
    functions = "\n\n".join(_zsh_command(prog, name, command, shipped) for command in commands)
    return _fill(ZSH, prog=prog, id=name, functions=functions)


def _zsh_command(prog: str, name: str, command: Command, shipped: Sequence[str]) -> str:
    function = "_".join((name, *map(_identifier, command.path)))
    specs = [spec for option in command.options for spec in _zsh_option(option, shipped)]
    descent = ""
    if command.children:
        # subcommands are the last place of their parser
        words = [
            _quote(f"{_zsh_plain(word)}:{meaning}" if meaning else _zsh_plain(word))
            for word, meaning in command.places[-1].words
        ]
        children = [f"{_quote(child)}) {function}_{_identifier(child)} && ret=0 ;;" for child in command.children]
        specs += [_quote(f"{len(command.places)}: :->command"), _quote("*:: :->rest")]
        descent = _fill(ZSH_DESCENT, words=" ".join(words), children=_indented(children, 16), prog=prog)
    for number, place in enumerate(command.places[: -1 if command.children else None], 1):
        where = "*" if place.repeats else str(number)
        specs.append(_quote(f"{where}:{_zsh_plain(place.name)}:{_zsh_action(place, shipped)}"))
    return _fill(ZSH_COMMAND, function=function, specs=" ".join(specs), descent=descent)


def _zsh_option(option: Option, shipped: Sequence[str]) -> Iterator[str]:
    others = "*" if option.repeats else f"({' '.join(option.flags)})"
    help = re.sub(r"([\[\]\\])", r"\\\1", option.help)
    for flag in option.flags:
        text, end = others + flag, f"[{help}]"
        if option.value:
            joined = "=" if flag.startswith("--") else "+"
            end = f"{joined}[{help}]:{_zsh_plain(option.value.name)}:{_zsh_action(option.value, shipped)}"
        yield _quote(text + end)


def _zsh_action(value: Value, shipped: Sequence[str]) -> str:
    yaml = '_files -g "*.(yml|yaml)"'
    match value.kind:
        case "words":
            return "(" + " ".join(_zsh_plain(word) for word, _ in value.words) + ")"
        case "playbooks":
            names = " ".join(_zsh_plain(name) for name in shipped)
            return f'_alternative "shipped:shipped playbook:({names})" "files:file:{{_files -g \\"*.(yml|yaml)\\"}}"'
        case "yaml":
            return yaml
        case "folders":
            return "_files -/"
        case "nothing":
            return " "
        case "files":
            return "_files"


def _zsh_plain(text: str) -> str:
    return re.sub(r"([:\\ ()'\"$`])", r"\\\1", text)


# fish --------------------------------------------------------------------------------------------------------------

FISH = """\
# fish completion for @prog@: @prog@ completion fish | source
function @id@_at --description 'whether the cursor stands at COMMAND, or at PLACE of it'
    set -l words (commandline -opc)
    set -l command ''
    set -l waits ''
    set -l ended ''
    set -l place 0
    for word in $words[2..-1]
        if test -n "$waits"
            set waits ''
            continue
        end
        if test -z "$ended"
            switch "$command|$word"
@steps@
                case '*|--'
                    set ended 1
                    continue
                case '*|-?*'
                    continue
            end
        end
        set place (math $place + 1)
    end
    test "$command" = "$argv[1]"; and begin
        test (count $argv) -eq 1; or test "$place" = "$argv[2]"
    end
end
function @id@_yaml
    for path in (__fish_complete_path (string replace -r -- '^--[^=]*=' '' (commandline -ct)))
        string match -rq -- '(/|\\\\.ya?ml)$' (string split -f1 \\t -- $path); and echo $path
    end
end
function @id@_folders
    __fish_complete_directories (string replace -r -- '^--[^=]*=' '' (commandline -ct)) ''
end
complete -c @prog@ -e
complete -c @prog@ -f
@lines@
"""


def _fish(prog: str, commands: list[Command], shipped: Sequence[str]) -> str:
    name = "__" + _identifier(prog)
    steps: list[str] = []
    rules: list[str] = []
    for command in commands:
        for child in command.children:
            path = " ".join((*command.path, child))
            then = [f"    set command {_fish_quote(path)}", "    set place 0", "    continue"]
            steps += [f"case {_fish_quote(f'{command.key}|{child}')}", *then]
        for option in command.options:
            if option.value:
                keys = " ".join(_fish_quote(f"{command.key}|{flag}") for flag in option.flags)
                steps += [f"case {keys}", "    set waits 1", "    continue"]
            flags = " ".join(_fish_flag(flag) for flag in option.flags)
            takes = f" -r {_fish_value(name, option.value, shipped)}" if option.value else ""
            condition = _fish_quote(f"{name}_at {_fish_quote(command.key)}")
            rules.append(f"complete -c {prog} -n {condition} {flags}{takes} -d {_fish_quote(option.help)}")
        for number, place in enumerate(command.places):
            where = "" if place.repeats else f" {number}"
            condition = _fish_quote(f"{name}_at {_fish_quote(command.key)}{where}")
            if place.kind == "words":
                rules += [
                    f"complete -c {prog} -n {condition} -f -a {_fish_list([word])} -d {_fish_quote(meaning)}"
                    for word, meaning in place.words
                ]
            else:
                rules.append(f"complete -c {prog} -n {condition} {_fish_value(name, place, shipped)}")
    return _fill(FISH, prog=prog, id=name, steps=_indented(steps, 16), lines="\n".join(rules))


def _fish_value(name: str, value: Value, shipped: Sequence[str]) -> str:
    match value.kind:
        case "words":
            return f"-f -a {_fish_list(word for word, _ in value.words)}"
        case "playbooks":
            return f"-f -a {_fish_list(shipped, f'({name}_yaml)')}"
        case "yaml":
            return f"-f -a '({name}_yaml)'"
        case "folders":
            return f"-f -a '({name}_folders)'"
        case "nothing":
            return "-f"
        case "files":
            return "-F"


def _fish_flag(flag: str) -> str:
    if flag.startswith("--"):
        return f"-l {_fish_quote(flag[2:])}"
    return f"-s {_fish_quote(flag[1:])}" if len(flag) == 2 else f"-o {_fish_quote(flag[1:])}"


def _fish_list(words: Iterable[str], *calls: str) -> str:
    """For `-a`, which fish expands once more when Tab is pressed: words stay words, calls are made."""
    return _fish_quote(" ".join((*map(_fish_quote, words), *calls)))


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# Writing -----------------------------------------------------------------------------------------------------------


def _fill(template: str, **parts: str) -> str:
    """Put the parts where `@name@` stands, in one pass: what was put in is never read again."""
    return re.sub("@(" + "|".join(parts) + ")@", lambda match: parts[match[1]], template)


def _indented(lines: Sequence[str], by: int) -> str:
    return "\n".join(" " * by + line for line in lines)
