"""Mistakes of newcomers: each message says what is wrong, where, and what to write instead."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, Runtime
from rxloop._names import ARGUMENTS
from rxloop.agents.remote_run import RemoteRun

TABLE = Path(__file__).with_name("api_mistakes.txt").read_text(encoding="utf-8")
MISTAKES = [line.split(" -> ", 1) for line in TABLE.splitlines() if line and not line.startswith("#")]

SETUP = '''
import asyncio
from dataclasses import dataclass
from typing import Any

import reactivex
import reactivex.operators as rx
from pydantic import BaseModel

import rxloop
from rxloop import *
from rxloop.testing import *


@tool
def look(city: str) -> str:
    """Look at a city."""
    return "sunny"


@tool
async def refund(ctx: RunContext[Any], order: str) -> str:
    """Refund an order."""
    return "yes" if await ctx.ask("Refund?") else "no"


@dataclass
class Deps:
    user: str


model = ScriptedModel("Hi.")
agent = Agent(model)
logged = Agent(ScriptedModel(*["Hi."] * 3), log=MemoryEventLog())
asking = Agent(ScriptedModel(call("refund", order="A1"), "Done."), tools=[refund], log=MemoryEventLog())
calling = ScriptedModel(call("look", city="Oslo"), "Done.")
'''
"""Names for the programs of the table."""

PREPARATION = compile(SETUP, "<setup>", "exec")


@pytest.fixture(scope="module", autouse=True)
def fast_collections() -> Iterator[None]:
    """Exclude existing objects from collections, because the programs need one each."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def explain(text: str, caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """Return the error, `log`, `warning` or `nothing` that a program causes, with its message and notes."""
    names: dict[str, Any] = {}
    exec(PREPARATION, names)

    async def main() -> None:
        code = compile(text.replace(" ;; ", "\n"), "<mistake>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result

    caplog.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            asyncio.run(main())
        except Exception as error:
            return type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", ())])
        finally:
            names.clear()
            gc.collect()
    if caplog.records:
        return "log", caplog.text
    texts = [str(warning.message) for warning in caught]
    return ("warning", "\n".join(texts)) if texts else ("nothing", "")


@pytest.mark.parametrize(("program", "expected"), MISTAKES, ids=[program for program, _ in MISTAKES])
def test_mistake_raises_an_error_with_a_remedy(program: str, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    error, _, fragments = expected.partition(":")
    caused, message = explain(program, caplog)
    missing = [each for fragment in fragments.split("|") if (each := fragment.strip()) not in message]
    assert (caused, missing) == (error, []), message


def test_table_has_at_least_150_mistakes() -> None:
    assert len(MISTAKES) >= 150


METHODS = {"Agent": Agent.__init__, "Agent.get_run(...).execute": RemoteRun.execute, "Runtime.start": Runtime.start}


@pytest.mark.parametrize("callee", ARGUMENTS)
def test_messages_about_unknown_arguments_list_the_arguments_of_the_signature(callee: str) -> None:
    method: Any = METHODS.get(callee) or getattr(Agent, callee.removeprefix("Agent."))
    _, *parameters = inspect.signature(method).parameters.values()
    assert ARGUMENTS[callee].split() == [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
