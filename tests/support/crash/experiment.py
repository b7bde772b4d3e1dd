"""Program that runs an experiment and may be killed at any time: `python experiment.py FOLDER`.

The model is slow, the tool records its effects in a file, and a model grades the answers. `FOLDER` receives the log,
one line for each model request, and the report.
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


def user_prompt(request: ModelRequest) -> str:
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
            note("asked", f"{variant} {user_prompt(request)} {request.step}")
            if request.messages[-1].role == "user":
                return call("charge", order=f"{variant} {user_prompt(request)}")
            return frames(f"--{request.messages[-1].text}|", 0.004)

        return turn

    def verdict(request: ModelRequest) -> Any:
        note("judged", user_prompt(request).replace("\n", " "))
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
