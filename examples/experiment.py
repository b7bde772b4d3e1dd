"""Measure an agent: cases, two variants, scorers of the answer and of the way to it, and a comparison of the two."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import mkdtemp

import reactivex.operators as rx

from rxloop import Agent, Result, SqliteEventLog, op, tool
from rxloop.evals import Case, Report, compare, experiment, score
from rxloop.testing import demo_model

WEATHER = {"Oslo": 18, "Bergen": 13, "Tromsø": 7}
CASES = [Case(f"What is the weather in {city}?", expected=str(degrees), id=city) for city, degrees in WEATHER.items()]
CASES.append(Case("What is 17 * 23?", expected="391", id="sum", metadata={"needs": []}))


@tool
async def get_weather(city: str) -> dict[str, str | int]:
    """Current weather in a city, such as "Oslo"."""
    await asyncio.sleep(0.05)
    return {"city": city, "temperature": WEATHER[city], "unit": "C", "sky": "sunny"}


def in_one_sentence(result: Result[str]) -> bool:
    """A scorer of one's own: a function of the result."""
    return result.content.count(".") <= 1


SCORERS = [
    score.contains(),
    score.called(lambda case: case.metadata.get("needs", ["get_weather"]), only=True),
    in_one_sentence,
    score.view("tool calls", op.tool_calls(), rx.count(), better="lower"),
    score.tokens(),
    score.seconds(),
]


async def main() -> None:
    """Carry out the experiment twice, and compare the variants."""
    model = demo_model()
    agents = {"without tools": Agent(model), "with tools": Agent(model, tools=[get_weather])}
    folder = Path(mkdtemp())
    log = SqliteEventLog(folder / "experiments.db")
    weather = experiment(CASES, agents, SCORERS, name="weather", log=log, repeats=2)
    async with weather:
        report = await weather.run()
        print(f"{report}\n")

        # All runs are in the log: the same experiment once more asks nobody, and takes no time.
        again = await weather.run()
        print(f"the same scores again: {again.trials == report.trials}\n")

    print(compare(report.of("without tools"), report.of("with tools")))

    page, data = folder / "report.html", folder / "report.json"
    page.write_text(report.to_html(), encoding="utf-8")
    data.write_bytes(report.to_json())
    assert Report.from_json(data.read_bytes()) == report
    print(f"\n{page.name} has every answer, and {data.name} is for the next comparison")
    await log.aclose()


if __name__ == "__main__":
    asyncio.run(main())
