"""`rxloop map`: ask for each line of a file, and go on where it was left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.agent_options import AgentOptions
from rxloop.cli.live_runs import interrupts
from rxloop.cli.map_files import Line, Lines, Output
from rxloop.cli.store import opened
from rxloop.cli.terminal import CANCELLED, FAILED, drawing, running, say
from rxloop.operators.views.progress import progress
from rxloop.operators.views.tally import Tally, counted, nothing_yet
from rxloop.providers.catalog import find_price
from rxloop.run.batch import Outcome
from rxloop.stream.stream import Stream


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
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    tools: options.Tools = None,
    mcp: options.MCP = None,
    agent: options.AgentName = None,
    strategy: options.Strategy = None,
    db: options.Database = None,
) -> None:
    """Ask for each line of a file, and go on where it was left.

    A line is a prompt, or an object with a field "prompt"; --prompt makes a prompt of the fields of an object. Run the
    same command again after Ctrl-C or a crash: what is answered is not asked again, and what failed is tried once more.

    Exit codes: 0 all lines are answered, 1 some failed, 2 wrong usage, 130 interrupted.
    """
    given = AgentOptions(agent, tuple(tools or ()), model, base_url, strategy, mcp=tuple(mcp or ()))
    lines = Lines(file, prompt, key)

    async def main() -> int:
        keys = lines.keys()
        async with contextlib.AsyncExitStack() as stack:
            # The agent comes first: who has mistyped a model gets no empty files.
            made = given.make()
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
                strategy=strategy,
            )
            so_far = await _written(outcomes, output, left, asked)
        return _end(so_far, len(output.answered), left)

    running(main())


async def _written(outcomes: Stream[Outcome[Line, object]], output: Output, left: int, model: str) -> Tally:
    """Write all outcomes, each as it comes, and count them."""
    price = find_price(model)
    console = drawing()
    shown = outcomes if console is None else outcomes.pipe(progress(left, price=price, console=console))
    so_far = nothing_yet(price)
    async for outcome in shown:
        output.write(outcome)
        so_far = counted(so_far, outcome, price)
    return so_far


def _end(so_far: Tally, before: int, left: int) -> int:
    say(str(so_far) + (f"; {before:,} were answered before" if before else ""))
    missing = left - so_far.done
    if missing:
        say(f"{missing:,} left: the same command goes on with them")
        return CANCELLED
    if so_far.failed:
        say("the same command tries the failed ones once more, where that may help")
    return FAILED if so_far.failed else 0


@contextlib.contextmanager
def _draining() -> Generator[Callable[[], bool]]:
    """Tell whether Ctrl-C was pressed: what was begun is then waited for, and nothing more is begun."""
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
