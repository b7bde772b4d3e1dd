"""Custom strategy that compares two independent answers, and requests a third one if they differ."""

from __future__ import annotations

import asyncio

from rxloop import Agent, MessageAddedEvent, StageEvent, ThoughtStreamEvent, op
from rxloop.strategies import Reply, StrategyRun, normalise, strategy
from rxloop.testing import demo_model
from rxloop.thinking import Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="second_opinion",
    stages=(
        Stage(name="ask_two", next="compare", prompt="Work this out with care, and answer in one sentence."),
        Stage(name="compare", next=("agree", "decide")),
        Stage(name="decide", next="agree", prompt="Two colleagues differ. Find out who is right, and answer."),
        Stage(name="agree"),
    ),
)


@strategy(stages=STAGES)
async def second_opinion(run: StrategyRun) -> str:
    """Request two independent answers, and a third one if they differ."""
    prompt = f"{run.stage('ask_two')}\n{run.question}"
    # Use a branch per call, so that both run concurrently. A resumed run reads recorded answers from its log.
    replies = await run.gather(*(run.ask(prompt, branch=f"second_opinion/{name}") for name in ("ann", "bob")))
    thoughts = [run.thought(reply.text, reply=reply) for reply in replies]

    run.stage("compare")
    if is_same_answer(*replies):
        run.thought("Both say the same.", type="decision", related_to=thoughts[0], confidence=0.9)
        run.stage("agree")
        return replies[0].text
    run.thought("They differ.", type="critique", related_to=thoughts[1], alternatives=[reply.text for reply in replies])
    answers = "\n".join(f"- {reply.text}" for reply in replies)
    answer = await run.conclude(f"{run.stage('decide')}\n{answers}")
    run.stage("agree")
    return answer


def is_same_answer(first: Reply, second: Reply) -> bool:
    """True if two answers differ only in their formatting."""
    return normalise(first.text) == normalise(second.text)


async def main() -> None:
    """Print a diagram of the stages before running the strategy."""
    print(STAGES.to_mermaid())
    async with Agent(demo_model(), strategy=second_opinion) as agent:
        run = agent.run("What is 12 * 12 - 4?")
        async for event in run.pipe(op.of_type(StageEvent, ThoughtStreamEvent, MessageAddedEvent)):
            match event:
                case StageEvent(to_stage=stage):
                    print(f"stage    {stage}")
                case MessageAddedEvent(branch=branch):
                    print(f"  asked  {branch}")
                case ThoughtStreamEvent(thought_type=kind, content=content, branch=branch):
                    print(f"  {kind:<10} {content}{f' ({branch})' if branch else ''}")
        print(f"answer   {(await run).output}")


if __name__ == "__main__":
    asyncio.run(main())
