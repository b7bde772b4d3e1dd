"""`rxloop diff`: where two runs first differ, and what each cost."""

from __future__ import annotations

from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.store import find_run, opened
from rxloop.cli.terminal import running, write
from rxloop.recorded.diff import diff as compare


def diff(
    a: options.RunId,
    b: Annotated[str, typer.Argument(metavar="RUN", help="The other run.")],
    db: options.Database = None,
) -> None:
    """Show where two runs first differ, and what each cost."""

    async def main() -> None:
        async with opened(db) as log:
            left, right = await find_run(log, a), await find_run(log, b)
            write(f"{await compare(log, left.task_id, right.task_id)}\n")

    running(main())
