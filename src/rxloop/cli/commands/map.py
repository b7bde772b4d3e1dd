"""Command `map`: batch processing of a file with resumption."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, cast

import orjson
import typer
from pydantic_core import to_json

from rxloop.agents.batch import Outcome
from rxloop.cli import options
from rxloop.cli.agent_loader import AgentOptions
from rxloop.cli.database import open_database
from rxloop.cli.live_run import handle_interrupts
from rxloop.cli.terminal import CANCELLED, FAILED, get_progress_console, notify, run_main
from rxloop.errors import ConfigurationError, NotFinished
from rxloop.operators.views.batch_progress import Tally, add_outcome, empty_tally, progress
from rxloop.providers.catalog import find_price
from rxloop.stream.stream import Stream


class Line(NamedTuple):
    """Input line with key and prompt."""

    key: str
    prompt: str


class Lines:
    """Lazy input file reader, which opens the file for each iteration."""

    def __init__(self, file: Path, template: str | None, key: str | None) -> None:
        """Create a reader for a JSONL file.

        Args:
            file: Path of the file.
            template: Prompt template with field names in braces.
            key: Field with the key of an object. Defaults to the prompt.
        """
        self._file = file
        self._template = template
        self._key = key

    def __iter__(self) -> Iterator[Line]:
        with self._file.open("rb") as lines:
            for number, text in enumerate(lines, 1):
                if text.strip():
                    yield self._parse_line(text, f"{self._file}, line {number}")

    def keys(self) -> set[str]:
        """Validate the file and return all keys.

        This reports errors before calling a model.

        Raises:
            ConfigurationError: A line is invalid, or a key is used multiple times.
        """
        seen: set[str] = set()
        for line in self:
            if line.key in seen:
                raise ConfigurationError(
                    f"{self._file} contains the key {line.key[:80]!r} twice; "
                    "select a field with unique values with --key"
                )
            seen.add(line.key)
        return seen

    def _parse_line(self, text: bytes, source: str) -> Line:
        try:
            value: Any = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ConfigurationError(f"{source} is not JSON: {error}") from None
        prompt = self._make_prompt(value, source)
        if not prompt.strip():
            raise ConfigurationError(f"{source}: the prompt must not be empty")
        return Line(prompt if self._key is None else _get_field(value, self._key, source, "--key"), prompt)

    def _make_prompt(self, value: Any, source: str) -> str:
        if self._template is None:
            return value if isinstance(value, str) else _get_field(value, "prompt", source, "--prompt TEMPLATE")
        if not isinstance(value, dict):
            raise ConfigurationError(f"{source} must be an object to be used with --prompt, got {_abbreviate(value)}")
        try:
            return self._template.format_map(cast("dict[str, Any]", value))
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            raise ConfigurationError(
                f"{source}: cannot format --prompt {self._template!r} with {_abbreviate(value)}: {error!r}"
            ) from None


def _get_field(value: Any, name: str, source: str, option: str) -> str:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    field_value = fields.get(name)
    if isinstance(field_value, bool) or not isinstance(field_value, str | int):
        raise ConfigurationError(
            f"{source} must have a string field {name!r}, got {_abbreviate(value)}; select another field with {option}"
        )
    return str(field_value)


def _abbreviate(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else text[:80] + "..."


class Output:
    """JSONL output file. Use `with` to open it for appending.

    Attributes:
        answered: Keys with existing answers.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._out: BufferedRandom | None = None
        self.answered: set[str] = set()

    def __enter__(self) -> Self:
        """Open and lock the file. Removes failed outcomes and incomplete lines.

        Raises:
            ConfigurationError: The file has a different format, or is locked by another process.
        """
        self._out = _open_locked(self._file)
        try:
            self._load_answered(self._out)
        except BaseException:
            self._out.close()
            raise
        return self

    def _load_answered(self, out: BufferedRandom) -> None:
        out.seek(0)
        lines = out.readlines()
        keys = [self._parse_answer(text, number) for number, text in enumerate(lines, 1)]
        self.answered = {key for key in keys if key is not None}
        if len(self.answered) < len(lines):
            # Replace the file atomically, so that no data is lost in a crash.
            replacement = self._file.with_name(f"{self._file.name}.new")
            replacement.unlink(missing_ok=True)
            self._out = _open_locked(replacement)
            self._out.writelines(text for key, text in zip(keys, lines, strict=True) if key is not None)
            self._out.flush()
            replacement.replace(self._file)
            out.close()

    def _parse_answer(self, text: bytes, number: int) -> str | None:
        """Return a line's key, or None if there is no answer."""
        if not text.endswith(b"\n"):
            return None
        try:
            value = orjson.loads(text)
            key = str(value["key"])
            return key if "output" in value else None
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise ConfigurationError(
                f"{self._file}, line {number} was not written by rxloop map, so the file was not changed; "
                "select another file with --out"
            ) from None

    def __exit__(self, *_: object) -> None:
        if self._out is not None:
            self._out.flush()
            os.fsync(self._out.fileno())
            self._out.close()

    def write(self, outcome: Outcome[Line, Any]) -> None:
        """Append an outcome and flush the file, so that other processes can read it immediately."""
        assert self._out is not None
        self._out.write(to_json(_to_data(outcome), fallback=str) + b"\n")
        self._out.flush()


def _to_data(outcome: Outcome[Line, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"key": outcome.key}
    try:
        data["output"] = outcome.output
    except NotFinished as pending:
        data["error"] = {"code": "input-required", "message": str(pending)}
    except Exception as error:
        data["error"] = {"code": getattr(error, "code", type(error).__name__), "message": str(error)}
    if outcome.result is not None:
        data |= {"taskId": outcome.result.task_id, "usage": outcome.result.usage.model_dump(by_alias=True)}
    return data


def _open_locked(file: Path) -> BufferedRandom:
    """Open and lock a file for appending. The lock is released when the file is closed or the process exits.

    Raises:
        ConfigurationError: The file is locked by another process.
    """
    locked = file.open("a+b")
    # File locks are not supported on Windows.
    with suppress(ModuleNotFoundError):
        import fcntl

        try:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked.close()
            raise ConfigurationError(
                f"{file} is locked by another rxloop map; wait for it, or select another file with --out"
            ) from None
    return locked


def map_(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="File with a JSON value on each line.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT.jsonl", help="Output file.")],
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEMPLATE", help='Prompt with field names in braces, such as "Summarise: {text}".'),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field with the unique key of a line. Defaults to the prompt.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the batch. Defaults to OUT and the model.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of concurrent runs.")] = 50,
    *,
    agent: AgentOptions,
    db: options.Database = None,
) -> None:
    """Run an agent for each line of a file, and resume interrupted batches.

    A line is a prompt, or an object with a field "prompt"; --prompt formats a prompt with the fields of an object.
    Repeat the command after Ctrl-C or a crash. Existing answers are kept, and failed lines are retried.

    Exit codes: 0 all lines have answers, 1 some failed, 2 invalid usage, 130 interrupted.
    """
    lines = Lines(file, prompt, key)

    async def main() -> int:
        keys = lines.keys()
        async with contextlib.AsyncExitStack() as stack:
            # Create the agent first, so that invalid options do not create empty files.
            loaded = agent.make()
            output = stack.enter_context(Output(out))
            remaining = len(keys - output.answered)
            log = await stack.enter_async_context(open_database(db, write=True))
            ready = await stack.enter_async_context(loaded.with_log(log))
            model = (ready.model or ready.agent.model).name
            stopping = stack.enter_context(_drain_on_interrupt())
            outcomes = ready.agent.map(
                _take_until(stopping, (line for line in lines if line.key not in output.answered)),
                prompt=lambda line: line.prompt,
                key=lambda line: line.key,
                name=name or f"{out.resolve()} by {model}",
                concurrency=concurrency,
                model=ready.model,
                strategy=agent.strategy,
            )
            totals = await _write_outcomes(outcomes, output, remaining, model)
        return _report_totals(totals, len(output.answered), remaining)

    run_main(main())


async def _write_outcomes(outcomes: Stream[Outcome[Line, object]], output: Output, remaining: int, model: str) -> Tally:
    """Write outcomes while they arrive, and return totals."""
    price = find_price(model)
    console = get_progress_console()
    reported = outcomes if console is None else outcomes.pipe(progress(remaining, price=price, console=console))
    totals = empty_tally(price)
    async for outcome in reported:
        output.write(outcome)
        totals = add_outcome(totals, outcome, price)
    return totals


def _report_totals(totals: Tally, previously: int, remaining: int) -> int:
    notify(str(totals) + (f"; {previously:,} answered previously" if previously else ""))
    missing = remaining - totals.done
    if missing:
        notify(f"{missing:,} remaining; repeat the command to continue")
        return CANCELLED
    if totals.failed:
        notify("repeat the command to retry failed lines, if their errors are retryable")
    return FAILED if totals.failed else 0


@contextlib.contextmanager
def _drain_on_interrupt() -> Generator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C. Active runs are completed, but no further runs are started."""
    is_stopped = False

    def stop(_: str) -> None:
        nonlocal is_stopped
        is_stopped = True

    with handle_interrupts(stop, "waiting for active runs"):
        yield lambda: is_stopped


def _take_until(stopping: Callable[[], bool], lines: Iterator[Line]) -> Iterator[Line]:
    for line in lines:
        if stopping():
            return
        yield line
