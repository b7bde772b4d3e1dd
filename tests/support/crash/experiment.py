"""Carries out an experiment in a process that may be killed at any moment: python experiment.py FOLDER.

Each case is asked of a model that takes a moment, with a tool that notes its effect in a file, and a judge. `FOLDER`
gets the log, a line for each request to either model, and the report.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from rxloop import Agent, SqliteEventLog, tool
from rxloop.evals import Case, experiment, score
from rxloop.pipeline.requests import ModelRequest
from rxloop.testing import ScriptedModel, call, frames

CASES = 12
VARIANTS = ("a", "b")
CONCURRENCY = 3


def asked_of(request: ModelRequest) -> str:
    return next(message.text for message in request.messages if message.role == "user")


async def main(folder: Path) -> None:
    def note(file: str, line: str) -> None:
        with (folder / file).open("ab", buffering=0) as out:
            out.write(f"{line}\n".encode())

    @tool(idempotent=False)
    async def charge(order: str) -> str:
        """Charge an order."""
        note("effects", order)
        await asyncio.sleep(0.005)
        return "charged"

    def answer(variant: str) -> Any:
        def turn(request: ModelRequest) -> Any:
            note("asked", f"{variant} {asked_of(request)} {request.step}")
            if request.messages[-1].role == "user":
                return call("charge", order=f"{variant} {asked_of(request)}")
            return frames(f"--{request.messages[-1].text}|", 0.004)

        return turn

    def verdict(request: ModelRequest) -> Any:
        note("judged", asked_of(request).replace("\n", " "))
        return '{"reason": "Said so.", "verdict": true}'

    variants = {
        name: Agent(ScriptedModel(*[answer(name)] * 1_000), tools=[charge], thoughts=False) for name in VARIANTS
    }
    log = SqliteEventLog(folder / "runs.db")
    judge = score.judge(ScriptedModel(*[verdict] * 1_000), "It says that it is done.")
    report = await experiment(
        [Case(f"Order {number}", "charged", id=str(number)) for number in range(CASES)],
        variants,
        [score.exact(), score.called("charge", only=True), judge],
        name="orders",
        log=log,
        concurrency=CONCURRENCY,
    ).run()
    await log.aclose()
    (folder / "report.json").write_bytes(report.to_json())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
