"""Let the model write a draft, review it, and improve it.

Use strategies to control the order of model calls. Resumed runs do not repeat finished calls. rxloop includes nine
strategies, such as `agent.run(..., strategy="tree_of_thoughts")`.
"""

import asyncio

from rxloop import Agent, op
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel


@strategy
async def draft_and_review(run: StrategyRun) -> str:
    """Write a draft, collect two reviews in parallel, and write the answer."""
    draft = await run.ask(f"Write a draft. {run.question}", branch="draft")
    run.thought(draft.text, type="planning", reply=draft)
    reviews = await run.gather(
        run.ask(f"Check the facts: {draft.text}", branch="facts"),
        run.ask(f"Check the style: {draft.text}", branch="style"),
    )
    for review in reviews:
        run.thought(review.text, type="critique", reply=review)
    comments = "\n".join(review.text for review in reviews)
    return await run.conclude(f"Improve the draft: {draft.text}\nReviews:\n{comments}")


async def main() -> None:
    model = ScriptedModel(  # or "openai:gpt-5"
        "Our new lamp is bright and consumes 9 watts!!!",
        "The lamp consumes 7 watts.",
        "One exclamation mark is enough.",
        "Our new lamp is bright and consumes 7 watts!",
    )
    run = Agent(model, strategy=draft_and_review).run("Announce our new lamp in one sentence.")
    async for thought in run.pipe(op.thoughts()):
        print(f"{thought.branch} {thought.thought_type}: {thought.content}")
    print((await run).output)


asyncio.run(main())

# Output:
# draft planning: Our new lamp is bright and consumes 9 watts!!!
# facts critique: The lamp consumes 7 watts.
# style critique: One exclamation mark is enough.
# Our new lamp is bright and consumes 7 watts!
