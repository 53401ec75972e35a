"""Parses command lines of documents and deployment files with the program's own parser.

Nothing is run. The parser checks names, arguments, options and types.
"""

import importlib
import shlex
from typing import Any

import click
from typer.main import get_command

from tollkeeper.entry.commands import main

_SHARED_OPTIONS = {"--config": 1, "--json": 0}
_OWN_OPTIONS = ("--help", "--version", "--install-completion", "--show-completion")
# Values for placeholders in documents, if the command needs a number or a date.
_VALUES = {"N": "1", "SECONDS": "60", "DAY": "2026-11-01", "MONTH": "2026-09", "USD": "1"}


def parse_line(line: str) -> None:
    """Raises a usage error if the program would print one."""
    words = [_VALUES.get(word, word) for word in shlex.split(line, comments=True)]
    assert words[0].rpartition("/")[2] == "tollkeeper", line
    parse_arguments(words[1:])


def parse_arguments(arguments: list[str]) -> None:
    words = _without_shared_options(arguments)
    if words and words[0] in _OWN_OPTIONS:
        return
    command, rest = find_command(words)
    if "--help" in rest:
        return
    with command.make_context(command.name, rest):
        pass


def check_mention(text: str) -> None:
    """Checks that the command and options in a sentence exist. Arguments may be missing."""
    words = text.replace("[", " ").replace("]", " ").replace("\\|", " ").split()[1:]
    if words and words[0] in _OWN_OPTIONS:
        return
    words = _without_shared_options(words)
    if not words or words[0] in {"…", "NOUN"}:
        return
    command, rest = find_command([word for word in words if word not in {"…", "|"}])
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    used = {word.partition("=")[0] for word in rest if word.startswith("--")}
    if used - known:
        raise click.UsageError(f"{text!r} has options that are not there: {used - known}")


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """Returns the command or the command group that the words begin with, and the remaining words."""
    modules = {name: module for name, module, _ in main._COMMANDS}
    if words[0] not in modules:
        raise click.UsageError(f"{words[0]!r} is not a command of tollkeeper")
    command: Any = get_command(
        importlib.import_module(f"tollkeeper.entry.commands.{modules[words[0]]}").app
    )
    rest = words[1:]
    while rest and hasattr(command, "commands"):
        if rest[0] not in command.commands:
            raise click.UsageError(f"{rest[0]!r} is not a command of {words[0]!r}")
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def _without_shared_options(words: list[str]) -> list[str]:
    kept, position = [], 0
    while position < len(words):
        if words[position] in _SHARED_OPTIONS:
            position += _SHARED_OPTIONS[words[position]]
        else:
            kept.append(words[position])
        position += 1
    return kept
