"""Custom view that splits the answer into sentences for text-to-speech, created with `op.make_view`.

The view stores the incomplete sentence in a local variable. It is emitted if the model pauses for too long, and at the
end of the answer, because the last sentence may not end with a full stop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from rxloop import Agent, op
from rxloop.operators import View, ViewOutput
from rxloop.testing import ScriptedModel, frames

_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def sentences(pause: float = 0.5) -> View[str, str]:
    """Split a text into sentences.

    ::

        source          --He--llo. --How---------you?--|
        sentences(4)    ------Hello.------How----(you?|)

    Args:
        pause: Seconds of silence after which an incomplete sentence is emitted.

    Returns:
        A view of a stream of text.
    """

    def split(out: ViewOutput[str]) -> Callable[[str], None]:
        pending = ""

        def process(piece: str) -> None:
            nonlocal pending
            *complete, pending = _END_OF_SENTENCE.split(pending + piece)
            for sentence in complete:
                out.emit(sentence)
            # This replaces the timer set for the previous piece.
            out.schedule(pause, flush)

        def flush() -> None:
            nonlocal pending
            sentence, pending = pending.strip(), ""
            if sentence:
                out.emit(sentence)

        out.on_end(flush)
        return process

    return op.make_view(split)


async def main() -> None:
    """Print an answer sentence by sentence."""
    answer = frames("-Oslo -is sunny-. -Take -a hat! -The ferry leaves at-------------- nine-|")
    spoken: list[str] = []
    async with Agent(ScriptedModel(answer)) as agent, agent.run("Plan a day in Oslo.") as run:
        # Views can be chained: `sentences` processes the output of `op.text()`.
        async for sentence in run.pipe(op.text(), sentences(pause=0.2)):
            print(f"  voice  {sentence}")
            spoken.append(sentence)
        result = await run
    assert spoken == ["Oslo is sunny.", "Take a hat!", "The ferry leaves at", "nine"]
    assert " ".join(spoken) == result.output


if __name__ == "__main__":
    asyncio.run(main())
