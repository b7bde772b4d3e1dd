"""Many runs in one Rx pipeline, using the operators of reactivex.

`agent.observe(prompt)` starts a run for each subscription. Disposing the subscription cancels the run. This supports
many operators: `debounce` waits until the user stops typing, `flat_map_latest` cancels the previous question,
`group_by` creates a conversation per user, and `buffer_with_time` updates a dashboard. `merge` returns a stream.
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
    """Start a run when the user has stopped typing."""
    keys: Subject[str] = Subject()
    answers = keys.pipe(rx.debounce(0.1), rx.flat_map(lambda question: agent.observe(question).text()))
    send(keys, {0.0: "How", 0.02: "How hi", 0.04: "How high is Galdhøpiggen?"})
    return [piece async for piece in merge(answers)]


async def newest_question(agent: Agent) -> list[str]:
    """Only answer the newest question. Earlier runs are cancelled, which closes their connections."""
    questions: Subject[str] = Subject()
    results = questions.pipe(rx.flat_map_latest(lambda question: agent.observe(question).result()))
    send(questions, {0.0: "Tell me all about fjords!", 0.1: "How long is Sognefjorden?"})
    return [result.output async for result in merge(results)]


async def conversations(agent: Agent) -> dict[str, list[str]]:
    """Run a conversation per user. Users are handled concurrently, and messages of a user sequentially."""
    messages: Subject[tuple[str, str]] = Subject()

    def get_user(message: tuple[str, str]) -> str:
        return message[0]

    def reply(message: tuple[str, str]) -> Observable[Result]:
        user, text = message
        return agent.observe(text, context_id=user).result()

    def conversation(group: Observable[tuple[str, str]]) -> Observable[Result]:
        return group.pipe(rx.map(reply), rx.concat_all())

    send(messages, {0.0: ("ann", "Hello!"), 0.01: ("bob", "Hi!"), 0.02: ("ann", "Any news?")})
    answers: dict[str, list[str]] = {}
    async for result in merge(messages.group_by(get_user).flat_map(conversation)):
        answers.setdefault(result.context_id, []).append(result.output)
    return answers


async def dashboard(agent: Agent) -> list[Stats]:
    """Collect statistics of all runs four times per second."""
    async with asyncio.timeout(5):
        runs = [agent.run(f"Describe the county number {number}.") for number in range(5)]
        windows = merge(*runs).pipe(op.stats(0.05), rx.buffer_with_time(0.25), rx.filter(bool), rx.map(get_newest))
        return [figures async for figures in windows]


def get_newest(figures: list[Stats]) -> Stats:
    """Return the newest statistics of a time window."""
    return figures[-1]


def send(subject: Subject[T], items: Mapping[float, T]) -> None:
    """Schedule items at the given times in seconds, then complete. Items are lost if the subject has no subscriber."""
    loop = asyncio.get_running_loop()
    for seconds, item in items.items():
        loop.call_later(seconds, subject.on_next, item)
    loop.call_later(max(items) + 0.5, subject.on_completed)


def slow_answer(request: ModelRequest) -> Turn:
    """Repeat the question at a rate of 20 words per second."""
    words = str(request.messages[-1].text).split()
    return turn(frames("-".join(f"{word} " for word in ["You", "ask:", *words]) + "|"))


async def main() -> None:
    """Run all four pipelines."""
    async with Agent(ScriptedModel(*[slow_answer] * 20), log=MemoryEventLog()) as agent:
        print("Typed:     ", "".join(await typed_questions(agent)))
        print("Newest:    ", "".join(await newest_question(agent)))
        for user, answers in (await conversations(agent)).items():
            print(f"{user.title()}:       ", *answers)
        for figures in await dashboard(agent):
            print("Dashboard: ", figures)


if __name__ == "__main__":
    asyncio.run(main())
