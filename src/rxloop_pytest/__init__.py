"""The pytest plugin of rxloop: fixtures for tests of agents.

A package of its own, because pytest imports every plugin that is installed, in every project: this one costs nothing
until a test asks for a fixture, and only then is rxloop imported.
"""

from __future__ import annotations

import inspect
import os
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rxloop.testing import OfflineModel, ScriptedModel, VirtualTime
    from rxloop.testing.chaos import Chaos

__all__ = ["ScriptedModels", "chaos", "offline_model", "scripted_model", "virtual_time"]


class ScriptedModels:
    """Makes scripted models; what the fixture `scripted_model` gives."""

    def __init__(self) -> None:
        self.made: list[ScriptedModel] = []
        """Those that the test has made."""

    def __call__(self, *turns: Any, **options: Any) -> ScriptedModel:
        """A `ScriptedModel` with these turns."""
        from rxloop.testing import ScriptedModel

        self.made.append(ScriptedModel(*turns, **options))
        return self.made[-1]

    def recorded(self, path: Any, **options: Any) -> ScriptedModel:
        """A model that answers as it did in a recorded run; the arguments are those of `rxloop.testing.marbles`."""
        from rxloop.testing import recorded

        self.made.append(recorded(path, **options))
        return self.made[-1]


@pytest.fixture
def scripted_model() -> Iterator[ScriptedModels]:
    """Makes models that say what they are told: `scripted_model("7 C.")`, `scripted_model.recorded("run.jsonl")`.

    A stream of one of them that is still open at the end of the test is an error: its run was neither awaited nor
    closed.
    """
    models = ScriptedModels()
    yield models
    left = sum(model.open for model in models.made)
    if left:
        pytest.fail(
            f"the test leaves {left} stream{'s' if left > 1 else ''} of a scripted model open: "
            "await the run, or close it with run.aclose()",
            pytrace=False,
        )


@pytest.fixture
def virtual_time(request: pytest.FixtureRequest) -> Iterator[VirtualTime]:
    """An event loop around the test whose clock jumps to its next timer: a minute takes no time.

    For plain `def` tests, which drive it: `virtual_time.run(agent.run("Hi"))`, or `assert_marbles`.
    """
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        pytest.fail(
            "virtual_time is for a plain `def test_...`: it brings an event loop of its own. "
            "Write `virtual_time.run(...)` where the test says `await`",
            pytrace=False,
        )
    from rxloop.testing import virtual_time as block

    with block() as time:
        yield time


@pytest.fixture
def offline_model() -> OfflineModel:
    """An `OfflineModel`, which answers by rules.

    `offline_model.provider()` is a model for agents; `offline_model.requests` has the bodies of its requests.
    """
    from rxloop.testing import OfflineModel

    return OfflineModel()


@pytest.fixture
def chaos() -> Iterator[Callable[..., Chaos]]:
    """Workers that are killed while they carry out your agent.

    `async with chaos("shop:agent") as workers: (await workers.play("Hi")).check()`. The arguments are those of
    `rxloop.testing.chaos.Chaos`, without the database: each test has a new one, in the server that the environment
    variable `RXLOOP_TEST_PG` names by an address whose role may make databases.
    """
    server = os.environ.get("RXLOOP_TEST_PG")
    if not server:
        pytest.skip("chaos needs a PostgreSQL: set RXLOOP_TEST_PG=postgresql://user@host/database")
    import psycopg
    from psycopg.conninfo import make_conninfo

    from rxloop.testing.chaos import Chaos

    name = f"rxloop_chaos_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    try:
        yield partial(Chaos, dsn=make_conninfo(server, dbname=name))
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
