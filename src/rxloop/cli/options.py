"""Common command line options and value parsers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_origin

import orjson
import typer

from rxloop.errors import ConfigurationError


class ThoughtLevel(StrEnum):
    """Verbosity of displayed thoughts."""

    none = "none"
    brief = "brief"
    all = "all"


Database = Annotated[
    str | None,
    typer.Option(
        "--db", envvar="RXLOOP_DB", metavar="DATABASE", help="The database of runs: a file, or postgresql://..."
    ),
]
SessionDatabase = Annotated[
    str | None,
    typer.Option(
        "--session-db",
        envvar="RXLOOP_SESSION_DB",
        metavar="DATABASE",
        help="The address of the same Postgres past a PgBouncer, where --db goes through one.",
    ),
]
Version = Annotated[
    str | None,
    typer.Option(
        "--program-version",
        metavar="VERSION",
        help="Go on only with runs that the same version of your program starts.",
    ),
]
SkipCorrupt = Annotated[
    bool, typer.Option("--skip-corrupt", help="Leave out events of the run that cannot be read, and say which.")
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run: the beginning or the end of its id, or 'last'.")]
Thoughts = Annotated[ThoughtLevel, typer.Option("--thoughts", help="How much of the thoughts to show.")]
Json = Annotated[bool, typer.Option("--json", help="Write the events as JSON, one a line.")]
Full = Annotated[
    bool,
    typer.Option(
        "--full", help="Include what is not public: hidden calls, metadata, system messages, answers, errors."
    ),
]
Strategy = Annotated[
    str | None, typer.Option("--strategy", metavar="NAME", help="How to reason: see `rxloop strategies`.")
]
NoLog = Annotated[bool, typer.Option("--no-log", help="Keep nothing in the database.")]


@dataclass(frozen=True, slots=True)
class RunDisplay:
    """Display options for runs."""

    thoughts: Thoughts = ThoughtLevel.brief
    json: Json = False


@dataclass(frozen=True, slots=True)
class LogSelection:
    """Options for the log and the conversation of a new run."""

    context: Annotated[str | None, typer.Option("--context", metavar="ID", help="A conversation to go on with.")] = None
    db: Database = None
    no_log: NoLog = False


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace option groups in the signature of a command by their options.

    Every parameter of a dataclass type is a group. Fields with an `Annotated` type are inserted as options at this
    position. Other fields keep their default values.
    """
    parameters: list[Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in signature(command, eval_str=True).parameters.items():
        group: Any = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            fields = signature(group, eval_str=True).parameters.values()
            members = [field for field in fields if get_origin(field.annotation) is Annotated]
            groups[name] = group, [member.name for member in members]
            parameters += members
        else:
            parameters.append(parameter)

    @wraps(command)
    def call(**values: Any) -> None:
        for name, (group, members) in groups.items():
            values[name] = group(**{member: values.pop(member) for member in members})
        command(**values)

    vars(call).update(__signature__=Signature([each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]))
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def typed(ctx: typer.Context) -> list[str]:
    """Return options passed on the command line, excluding those from environment variables."""
    sources = {each.name: ctx.get_parameter_source(each.name) for each in ctx.command.params if each.name}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def as_text(given: str) -> str:
    """Decode an argument as UTF-8, regardless of the terminal's encoding. Invalid bytes are replaced."""
    return given.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def pairs(given: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Parse options with key-value pairs, such as `--input ID=JSON`.

    Raises:
        ConfigurationError: A value is invalid.
    """
    found: dict[str, Any] = {}
    for text in given or ():
        name, sign, value = as_text(text).partition("=")
        if not sign or not name:
            raise ConfigurationError(f"{option} {text!r}: write NAME=JSON")
        try:
            found[name] = orjson.loads(value)
        except orjson.JSONDecodeError:
            quoted = f"{name}={orjson.dumps(value).decode()}"
            raise ConfigurationError(
                f"{option} {text!r}: {value!r} is not JSON; a text is {option} '{quoted}'"
            ) from None
    return found
