"""Write a view that measures answer speed.

Use views to compute rates, alerts or summaries from events of live or recorded runs. `op.stats()` computes token rates
and other statistics.
"""

from collections.abc import Callable

from rxloop import Agent, ContentCompleteEvent, ContentDeltaEvent, Event, op
from rxloop.operators import View, ViewOutput
from rxloop.testing import ScriptedModel, frames, virtual_time


def words_per_second() -> View[Event, float]:
    """Emit the speed of the answer after each fragment."""

    def measure(out: ViewOutput[float]) -> Callable[[Event], None]:
        start, words = out.now(), 0

        def handle(event: Event) -> None:
            nonlocal start, words
            match event:
                case ContentDeltaEvent(delta=text):
                    words += len(text.split())
                    out.emit(words / (out.now() - start))
                case ContentCompleteEvent():
                    start, words = out.now(), 0
                case _:
                    pass

        return handle

    return op.make_view(measure)


model = ScriptedModel(frames("----The sky is blue --because blue light is scattered -most.|"))  # or "openai:gpt-5"


async def main() -> None:
    async for speed in Agent(model).run("Why is the sky blue?").pipe(words_per_second()):
        print(f"{speed:.0f} words/s")


with virtual_time() as time:  # In your program, use asyncio.run(main()).
    time.run(main())

# Output:
# 40 words/s
# 51 words/s
# 44 words/s
