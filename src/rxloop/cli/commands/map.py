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
from rxloop.cli.database import opened
from rxloop.cli.live_run import interrupts
from rxloop.cli.terminal import CANCELLED, FAILED, drawing, running, say
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
                    yield self._line(text, f"{self._file}, line {number}")

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
                    f"{self._file} has two lines of the key {line.key[:80]!r}: "
                    "--key names a field that tells them apart"
                )
            seen.add(line.key)
        return seen

    def _line(self, text: bytes, where: str) -> Line:
        try:
            value: Any = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ConfigurationError(f"{where} is not JSON: {error}") from None
        prompt = self._prompt(value, where)
        if not prompt.strip():
            raise ConfigurationError(f"{where} has an empty prompt")
        return Line(prompt if self._key is None else _field(value, self._key, where, "--key"), prompt)

    def _prompt(self, value: Any, where: str) -> str:
        if self._template is None:
            return value if isinstance(value, str) else _field(value, "prompt", where, "--prompt TEMPLATE")
        if not isinstance(value, dict):
            raise ConfigurationError(f"{where} is {_short(value)}, and --prompt takes the fields of objects")
        try:
            return self._template.format_map(cast("dict[str, Any]", value))
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            raise ConfigurationError(
                f"{where}: --prompt {self._template!r} cannot be filled in from {_short(value)}: {error!r}"
            ) from None


def _field(value: Any, name: str, where: str, option: str) -> str:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    found = fields.get(name)
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise ConfigurationError(f"{where} is {_short(value)}, without a text {name!r}: {option} names another field")
    return str(found)


def _short(value: Any) -> str:
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
        self._out = _locked(self._file)
        try:
            self._take_up(self._out)
        except BaseException:
            self._out.close()
            raise
        return self

    def _take_up(self, out: BufferedRandom) -> None:
        out.seek(0)
        lines = out.readlines()
        read = [self._read(text, number) for number, text in enumerate(lines, 1)]
        self.answered = {key for key in read if key is not None}
        if len(self.answered) < len(lines):
            # Replace the file atomically, so that no data is lost in a crash.
            beside = self._file.with_name(f"{self._file.name}.new")
            beside.unlink(missing_ok=True)
            self._out = _locked(beside)
            self._out.writelines(text for key, text in zip(read, lines, strict=True) if key is not None)
            self._out.flush()
            beside.replace(self._file)
            out.close()

    def _read(self, text: bytes, number: int) -> str | None:
        """Return a line's key, or None if there is no answer."""
        if not text.endswith(b"\n"):
            return None
        try:
            value = orjson.loads(text)
            key = str(value["key"])
            return key if "output" in value else None
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise ConfigurationError(
                f"{self._file}, line {number} was not written by rxloop map, which leaves it as it is: "
                "--out names another file"
            ) from None

    def __exit__(self, *_: object) -> None:
        if self._out is not None:
            self._out.flush()
            os.fsync(self._out.fileno())
            self._out.close()

    def write(self, outcome: Outcome[Line, Any]) -> None:
        """Append an outcome and flush the file, so that other processes can read it immediately."""
        assert self._out is not None
        self._out.write(to_json(_told(outcome), fallback=str) + b"\n")
        self._out.flush()


def _told(outcome: Outcome[Line, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"key": outcome.key}
    try:
        told["output"] = outcome.output
    except NotFinished as waits:
        told["error"] = {"code": "input-required", "message": str(waits)}
    except Exception as error:
        told["error"] = {"code": getattr(error, "code", type(error).__name__), "message": str(error)}
    if outcome.result is not None:
        told |= {"taskId": outcome.result.task_id, "usage": outcome.result.usage.model_dump(by_alias=True)}
    return told


def _locked(file: Path) -> BufferedRandom:
    """Open and lock a file for appending. The lock is released when the file is closed or the process exits.

    Raises:
        ConfigurationError: The file is locked by another process.
    """
    opened = file.open("a+b")
    # File locks are not supported on Windows.
    with suppress(ModuleNotFoundError):
        import fcntl

        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            opened.close()
            raise ConfigurationError(
                f"{file} is being written by another rxloop map: wait for it, or name another --out"
            ) from None
    return opened


def map_(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="A JSON value on each line.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT.jsonl", help="Where the answers go.")],
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEMPLATE", help='Such as "Summarise: {text}", with the fields of a line in braces.'),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="What tells a line from the others; by default its prompt.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name of the batch; by default that of OUT and the model.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="How many are asked at once.")] = 50,
    *,
    agent: AgentOptions,
    db: options.Database = None,
) -> None:
    """Ask for each line of a file, and go on where it was left.

    A line is a prompt, or an object with a field "prompt"; --prompt makes a prompt of the fields of an object. Run the
    same command again after Ctrl-C or a crash: what is answered is not asked again, and what failed is tried once more.

    Exit codes: 0 all lines are answered, 1 some failed, 2 wrong usage, 130 interrupted.
    """
    lines = Lines(file, prompt, key)

    async def main() -> int:
        keys = lines.keys()
        async with contextlib.AsyncExitStack() as stack:
            # Create the agent first, so that invalid options do not create empty files.
            made = agent.make()
            output = stack.enter_context(Output(out))
            left = len(keys - output.answered)
            log = await stack.enter_async_context(opened(db, write=True))
            ready = await stack.enter_async_context(made.logging_to(log))
            asked = (ready.model or ready.agent.model).name
            stopping = stack.enter_context(_draining())
            outcomes = ready.agent.map(
                _until(stopping, (line for line in lines if line.key not in output.answered)),
                prompt=lambda line: line.prompt,
                key=lambda line: line.key,
                name=name or f"{out.resolve()} by {asked}",
                concurrency=concurrency,
                model=ready.model,
                strategy=agent.strategy,
            )
            totals = await _written(outcomes, output, left, asked)
        return _end(totals, len(output.answered), left)

    running(main())


async def _written(outcomes: Stream[Outcome[Line, object]], output: Output, left: int, model: str) -> Tally:
    """Write outcomes while they arrive, and return totals."""
    price = find_price(model)
    console = drawing()
    shown = outcomes if console is None else outcomes.pipe(progress(left, price=price, console=console))
    totals = empty_tally(price)
    async for outcome in shown:
        output.write(outcome)
        totals = add_outcome(totals, outcome, price)
    return totals


def _end(totals: Tally, before: int, left: int) -> int:
    say(str(totals) + (f"; {before:,} were answered before" if before else ""))
    missing = left - totals.done
    if missing:
        say(f"{missing:,} left: the same command goes on with them")
        return CANCELLED
    if totals.failed:
        say("the same command tries the failed ones once more, where that may help")
    return FAILED if totals.failed else 0


@contextlib.contextmanager
def _draining() -> Generator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C. Active runs are completed, but no further runs are started."""
    stopped = False

    def stop(_: str) -> None:
        nonlocal stopped
        stopped = True

    with interrupts(stop, "waiting for what was begun"):
        yield lambda: stopped


def _until(stopping: Callable[[], bool], lines: Iterator[Line]) -> Iterator[Line]:
    for line in lines:
        if stopping():
            return
        yield line
