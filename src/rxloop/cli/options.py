"""Common command line options and value parsers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import orjson
import typer

from rxloop.cli.suggestions import suggest_runs, suggest_strategies
from rxloop.errors import ConfigurationError

if TYPE_CHECKING:
    from rxloop.strategies.catalog import StrategyName


class ThoughtLevel(StrEnum):
    """Verbosity of displayed thoughts."""

    none = "none"
    brief = "brief"
    all = "all"


class Approval(StrEnum):
    """Automatic answer to tool approval questions."""

    ask = "ask"
    always = "always"
    never = "never"


Database = Annotated[
    str | None,
    typer.Option("--db", envvar="RXLOOP_DB", metavar="DATABASE", help="Database file or postgresql:// URL."),
]
SessionDatabase = Annotated[
    str | None,
    typer.Option(
        "--session-db",
        envvar="RXLOOP_SESSION_DB",
        metavar="DATABASE",
        help="Direct URL of the Postgres database, if --db refers to a PgBouncer.",
    ),
]
Version = Annotated[
    str | None,
    typer.Option(
        "--program-version",
        metavar="VERSION",
        help="Version of your program. Only runs of the same version are executed.",
    ),
]
SkipCorrupt = Annotated[bool, typer.Option("--skip-corrupt", help="Skip unreadable events of the run with a warning.")]
RunId = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Run id, a unique prefix or suffix of it, or 'last'.", autocompletion=suggest_runs
    ),
]
Thoughts = Annotated[ThoughtLevel, typer.Option("--thoughts", help="Level of detail for thoughts.")]
Json = Annotated[bool, typer.Option("--json", help="Write events as JSON, one per line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Write only the answer, errors and open questions.")]
Full = Annotated[
    bool,
    typer.Option("--full", help="Include internal data: hidden calls, metadata, system messages, answers and errors."),
]
if TYPE_CHECKING:
    Strategy = StrategyName | None
else:
    # The command line accepts any string. `AgentOptions.make` checks it.
    Strategy = Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Reasoning strategy; see `rxloop strategies`.",
            autocompletion=suggest_strategies,
        ),
    ]
NoLog = Annotated[bool, typer.Option("--no-log", help="Do not store runs in the database.")]


@dataclass(frozen=True, slots=True)
class RunDisplay:
    """Display options for runs."""

    thoughts: Thoughts = ThoughtLevel.brief
    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True, slots=True)
class RunControl:
    """Options for approvals and costs."""

    approve: Annotated[
        Approval,
        typer.Option(
            "--approve",
            help="Answer to yes-or-no questions about tool calls. By default, they are asked on a terminal.",
        ),
    ] = Approval.ask
    max_cost: Annotated[
        float | None,
        typer.Option("--max-cost", metavar="USD", help="Maximum cost in US dollars. No model is called afterwards."),
    ] = None


@dataclass(frozen=True, slots=True)
class LogSelection:
    """Options for the log and the conversation of a new run."""

    context: Annotated[str | None, typer.Option("--context", metavar="ID", help="Conversation to continue.")] = None
    continue_last: Annotated[
        bool, typer.Option("--continue", "-c", help="Continue the conversation with the most recent run.")
    ] = False
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


def list_typed_options(ctx: typer.Context) -> list[str]:
    """Return options passed on the command line, excluding those from environment variables."""
    sources = {each.name: ctx.get_parameter_source(each.name) for each in ctx.command.params if each.name}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def decode(argument: str) -> str:
    """Decode an argument as UTF-8, regardless of the terminal's encoding. Invalid bytes are replaced."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def parse_pairs(arguments: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Parse key-value pairs, such as `--input ID=JSON`.

    Raises:
        ConfigurationError: Values are invalid.
    """
    values: dict[str, Any] = {}
    for text in arguments or ():
        name, separator, value = decode(text).partition("=")
        if not separator or not name:
            raise ConfigurationError(f"{option} must have the form NAME=JSON, got {text!r}")
        try:
            values[name] = orjson.loads(value)
        except orjson.JSONDecodeError:
            quoted = f"{name}={orjson.dumps(value).decode()}"
            raise ConfigurationError(
                f"{option} {text!r}: {value!r} is not JSON; for a string, use {option} '{quoted}'"
            ) from None
    return values
