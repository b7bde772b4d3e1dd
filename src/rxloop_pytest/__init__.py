"""The pytest plugin of rxloop: fixtures for tests of agents.

This is a separate package because pytest imports all installed plugins in every project. rxloop itself is imported
lazily, when a test requests a fixture.
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
    """Factory for scripted models, used by the `scripted_model` fixture."""

    def __init__(self) -> None:
        self.made: list[ScriptedModel] = []
        """Models created during the test."""

    def __call__(self, *turns: Any, **options: Any) -> ScriptedModel:
        """Create a `ScriptedModel` from the given turns."""
        from rxloop.testing import ScriptedModel

        self.made.append(ScriptedModel(*turns, **options))
        return self.made[-1]

    def recorded(self, path: Any, **options: Any) -> ScriptedModel:
        """Create a model from a recorded run. See `rxloop.testing.recorded` for the arguments."""
        from rxloop.testing import recorded

        self.made.append(recorded(path, **options))
        return self.made[-1]


@pytest.fixture
def scripted_model() -> Iterator[ScriptedModels]:
    """Create scripted models: `scripted_model("7 C.")`, `scripted_model.recorded("run.jsonl")`.

    The test fails if a model stream is still open on teardown, which means that a run was neither awaited nor closed.
    """
    models = ScriptedModels()
    yield models
    count = sum(model.open for model in models.made)
    if count:
        pytest.fail(
            f"the test left {count} stream{'s' if count > 1 else ''} of a scripted model open; "
            "await the run, or close it with run.aclose()",
            pytrace=False,
        )


@pytest.fixture
def virtual_time(request: pytest.FixtureRequest) -> Iterator[VirtualTime]:
    """Event loop with a virtual clock that jumps to the next timer, so sleeping takes no real time.

    Only for sync tests. Use `virtual_time.run(agent.run("Hi"))` or `assert_marbles`.
    """
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        pytest.fail(
            "virtual_time creates an event loop, so the test must be a plain `def`; "
            "use `virtual_time.run(...)` instead of `await`",
            pytrace=False,
        )
    from rxloop.testing import virtual_time as block

    with block() as time:
        yield time


@pytest.fixture
def offline_model() -> OfflineModel:
    """Rule-based `OfflineModel`.

    Pass `offline_model.provider()` to an agent. The request bodies are available as `offline_model.requests`.
    """
    from rxloop.testing import OfflineModel

    return OfflineModel()


@pytest.fixture
def chaos() -> Iterator[Callable[..., Chaos]]:
    """Start worker processes that are killed while running an agent.

    Use `async with chaos("shop:agent") as workers: (await workers.run_scenario("Hi")).check()`. The arguments are those
    of `rxloop.testing.chaos.Chaos`, except for the database: each test uses a temporary one. `RXLOOP_TEST_PG` must
    contain the URL of a PostgreSQL server and a role that is allowed to create databases.
    """
    server = os.environ.get("RXLOOP_TEST_PG")
    if not server:
        pytest.skip("chaos needs PostgreSQL; set RXLOOP_TEST_PG=postgresql://user@host/database")
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
