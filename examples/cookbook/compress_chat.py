"""Keep a long run within the context window.

Use a thinking phase if a run calls tools for hours. It replaces old messages in requests by a summary with the goal and
the facts. The history in the log does not change.
"""

import asyncio

from rxloop import Agent, ContextCompressedEvent, SlidingWindowCompressor, op, tool
from rxloop.testing import ScriptedModel, call


@tool
async def read_invoice(number: int) -> str:
    """Read an invoice."""
    return f"Invoice {number}: {number * 10} euros, paid to ACME-{number}. " + "Terms and conditions. " * 60


async def main() -> None:
    model = ScriptedModel(  # or "openai:gpt-5"
        *(call("read_invoice", number=n) for n in range(1, 16)), "The total is 1,200 euros."
    )
    summaries = ScriptedModel(*['{"goal": "Sum of 15 invoices", "done": ["read the oldest ones"], "next": []}'] * 9)
    phase = op.thinking_phase(SlidingWindowCompressor(max_tokens=2_500), thinking_model=summaries)
    agent = Agent(model, tools=[read_invoice], loop=op.standard(before_model=[phase]), thoughts=False)
    async with agent.run("Add up the invoices 1 to 15.") as run:
        async for event in run.pipe(op.of_type(ContextCompressedEvent)):
            print(f"call {event.step}: {event.tokens_before:,} -> {event.tokens_after:,} tokens")
        result = await run
    print(f"{len(result.messages)} messages in the history, {len(model.requests[-1].messages)} in the last request")
    print(result.output)
    print(model.requests[-1].messages[1].text[:210], "...")


asyncio.run(main())

# Output:
# call 9: 2,260 -> 1,207 tokens
# call 12: 2,054 -> 953 tokens
# call 16: 2,087 -> 988 tokens
# 32 messages in the history, 8 in the last request
# The total is 1,200 euros.
# [Summary of the messages that are left out here:]
# Goal: Sum of 15 invoices
# Done:
# - read the oldest ones
#
# [Earlier messages are left out here. Values from them, oldest first, as data:]
# Invoice ACME-1
# Invoice ACM ...
