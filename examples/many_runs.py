"""Many runs in one Rx pipeline, with the stock operators of reactivex.

`agent.observe(prompt)` is a run for each subscription, and disposing the subscription cancels the run. So what Rx knows
of streams is known of agents: `debounce` waits until somebody has typed to the end, `flat_map_latest` lets the old
question go, `group_by` makes a conversation of each user, `buffer_with_time` a dashboard. `merge` makes of it all a
stream to iterate over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import reactivex.operators as rx
from reactivex import Observable
from reactivex.subject import Subject

from rxloop import Agent, MemoryEventLog, ModelRequest, Result, merge, op
from rxloop.operators import Stats
from rxloop.providers.script import Turn
from rxloop.testing import ScriptedModel, frames, turn

T = TypeVar("T")


async def typed_questions(agent: Agent) -> list[str]:
    """Ask once somebody has stopped typing."""
    keys: Subject[str] = Subject()
    answers = keys.pipe(rx.debounce(0.1), rx.flat_map(lambda question: agent.observe(question).text()))
    send(keys, {0.0: "How", 0.02: "How hi", 0.04: "How high is Galdhøpiggen?"})
    return [piece async for piece in merge(answers)]


async def newest_question(agent: Agent) -> list[str]:
    """Answer the newest question: the run of an older one is cancelled, and its connection to the model is closed."""
    questions: Subject[str] = Subject()
    results = questions.pipe(rx.flat_map_latest(lambda question: agent.observe(question).result()))
    send(questions, {0.0: "Tell me all about fjords!", 0.1: "How long is Sognefjorden?"})
    return [result.output async for result in merge(results)]


async def conversations(agent: Agent) -> dict[str, list[str]]:
    """Hold a conversation with each user: one message after the other, and all users at once."""
    messages: Subject[tuple[str, str]] = Subject()

    def user_of(message: tuple[str, str]) -> str:
        return message[0]

    def reply(message: tuple[str, str]) -> Observable[Result]:
        user, text = message
        return agent.observe(text, context_id=user).result()

    def conversation(group: Observable[tuple[str, str]]) -> Observable[Result]:
        return group.pipe(rx.map(reply), rx.concat_all())

    send(messages, {0.0: ("ann", "Hello!"), 0.01: ("bob", "Hi!"), 0.02: ("ann", "Any news?")})
    answers: dict[str, list[str]] = {}
    async for result in merge(messages.group_by(user_of).flat_map(conversation)):
        answers.setdefault(result.context_id, []).append(result.output)
    return answers


async def dashboard(agent: Agent) -> list[Stats]:
    """Look at all runs together, four times a second."""
    async with asyncio.timeout(5):
        runs = [agent.run(f"Describe the county number {number}.") for number in range(5)]
        windows = merge(*runs).pipe(op.stats(0.05), rx.buffer_with_time(0.25), rx.filter(bool), rx.map(newest))
        return [figures async for figures in windows]


def newest(figures: list[Stats]) -> Stats:
    """Take the newest of the figures of a window."""
    return figures[-1]


def send(subject: Subject[T], items: Mapping[float, T]) -> None:
    """Send each item at its second, and after the last one the end; what is sent needs a reader by then."""
    loop = asyncio.get_running_loop()
    for seconds, item in items.items():
        loop.call_later(seconds, subject.on_next, item)
    loop.call_later(max(items) + 0.5, subject.on_completed)


def slow_answer(request: ModelRequest) -> Turn:
    """Answer by repeating the question, at five words in a quarter of a second."""
    words = str(request.messages[-1].text).split()
    return turn(frames("-".join(f"{word} " for word in ["You", "ask:", *words]) + "|"))


async def main() -> None:
    """Show the four of them."""
    async with Agent(ScriptedModel(*[slow_answer] * 20), log=MemoryEventLog()) as agent:
        print("Typed:     ", "".join(await typed_questions(agent)))
        print("Newest:    ", "".join(await newest_question(agent)))
        for user, answers in (await conversations(agent)).items():
            print(f"{user.title()}:       ", *answers)
        for figures in await dashboard(agent):
            print("Dashboard: ", figures)


if __name__ == "__main__":
    asyncio.run(main())
