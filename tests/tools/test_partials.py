"""Arguments bound by the program, which are hidden from the model."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, SecretStr

from rxloop import Agent, tool
from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.run_context import RunContext
from rxloop.server.mcp.tools import AgentTool, make_agent_tools
from rxloop.testing import ScriptedModel
from rxloop.testing import call as scripted
from rxloop.tools import FunctionTool
from rxloop.tools.function import as_tool
from support.fake_host import FakeHost

KEY = "sk-bound-1234"


class Database:
    """Type without a JSON form."""

    def __repr__(self) -> str:
        return f"Database({KEY})"


def query(sql: str, tenant: str, limit: int = 10, *, api_key: str = "none") -> list[Any]:
    """Query a table.

    Args:
        sql: What to look for.
        tenant: Whose rows.
        limit: Number of rows.
        api_key: The key.
    """
    return [sql, tenant, limit, api_key]


async def query_async(sql: str, tenant: str, limit: int = 10, *, api_key: str = "none") -> list[Any]:
    """Query a table."""
    return query(sql, tenant, limit, api_key=api_key)


def context_and_database(ctx: RunContext[Any], db: Database, sql: str) -> list[Any]:
    return [sql, repr(db), ctx.deps]


class Table:
    def query(self, sql: str, tenant: str, limit: int = 10, *, api_key: str = "none") -> list[Any]:
        """Query a table."""
        return query(sql, tenant, limit, api_key=api_key)

    for_acme = functools.partialmethod(query, tenant="acme", api_key=KEY)

    @classmethod
    def of_class(cls, sql: str, tenant: str, limit: int = 10, *, api_key: str = "none") -> list[Any]:
        """Query a table."""
        return query(sql, tenant, limit, api_key=api_key)

    @staticmethod
    def static(sql: str, tenant: str, limit: int = 10, *, api_key: str = "none") -> list[Any]:
        """Query a table."""
        return query(sql, tenant, limit, api_key=api_key)


class CallableTable:
    """Callable object."""

    def __call__(self, sql: str, tenant: str, limit: int = 10, *, api_key: str = "none") -> list[Any]:
        """Query a table."""
        return query(sql, tenant, limit, api_key=api_key)


class AsyncCallable:
    async def __call__(self, sql: str, tenant: str, limit: int = 10, *, api_key: str = "none") -> list[Any]:
        """Query a table."""
        return query(sql, tenant, limit, api_key=api_key)


def add_wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def set_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Set the signature explicitly, like some decorator libraries."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    wrapper.__signature__ = inspect.signature(function)  # pyright: ignore[reportFunctionMemberAccess]
    wrapper.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess]
    return wrapper


def update_wrapper(function: functools.partial[Any]) -> Callable[..., Any]:
    return functools.update_wrapper(function, query)


BOUND: dict[str, Any] = {"tenant": "acme", "api_key": KEY}
BY_KEYWORD = functools.partial(query, **BOUND)

SAME = {
    "function": BY_KEYWORD,
    "async": functools.partial(query_async, **BOUND),
    "partial of a partial": functools.partial(functools.partial(query, tenant="acme"), api_key=KEY),
    "outer partial replaces": functools.partial(functools.partial(query, tenant="x", api_key="y"), **BOUND),
    "method": functools.partial(Table().query, **BOUND),
    "class method": functools.partial(Table.of_class, **BOUND),
    "static method": functools.partial(Table.static, **BOUND),
    "partialmethod": Table().for_acme,
    "partialmethod of the class": functools.partial(Table.for_acme, Table()),
    "object": functools.partial(CallableTable(), **BOUND),
    "async object": functools.partial(AsyncCallable(), **BOUND),
    "tool": functools.partial(tool(query), **BOUND),
    "tool of a partial": tool(functools.partial(query, **BOUND), name="query"),
    "partial of a decorated function": functools.partial(add_wrapper(query), **BOUND),
    "decorated": add_wrapper(BY_KEYWORD),
    "decorated twice": add_wrapper(add_wrapper(BY_KEYWORD)),
    "decorated with a signature": set_signature(BY_KEYWORD),
    "updated": update_wrapper(functools.partial(query, **BOUND)),
    "partial of an updated partial": functools.partial(
        update_wrapper(functools.partial(query, tenant="acme")), api_key=KEY
    ),
    "cached": functools.lru_cache(BY_KEYWORD),
}


async def call_tool(tested_tool: FunctionTool[Any, ..., Any], /, **arguments: Any) -> Any:
    return await tested_tool.call(arguments, replace(FakeHost().context(), deps="run"))


@pytest.mark.parametrize("function", SAME.values(), ids=SAME)
async def test_bound_arguments_are_hidden_from_the_model_and_passed(function: Any) -> None:  # P26
    tested_tool = tool(function, name="query")
    definition = tested_tool.definition
    assert list(definition.parameters["properties"]) == ["sql", "limit"]
    assert definition.parameters["required"] == ["sql"]
    assert definition.description == "Query a table."
    assert KEY not in repr((tested_tool, definition))
    assert await call_tool(tested_tool, sql="a", limit=3) == ["a", "acme", 3, KEY]
    assert await call_tool(tested_tool, sql="a") == ["a", "acme", 10, KEY]


@pytest.mark.parametrize("function", SAME.values(), ids=SAME)
@pytest.mark.parametrize("name", ["tenant", "api_key"])
async def test_bound_argument_from_the_model_is_refused_as_unknown(function: Any, name: str) -> None:  # P26
    with pytest.raises(ToolError) as caught:
        await call_tool(tool(function, name="query"), **{"sql": "a", name: "other"})
    assert f"- {name}: there is no such parameter (there are: sql, limit)" in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "visible", "result"),
    [
        (functools.partial(query, "a"), ["tenant", "limit", "api_key"], ["a", "t", 10, "none"]),
        (functools.partial(query, "a", "acme", api_key=KEY), ["limit"], ["a", "acme", 10, KEY]),
        (update_wrapper(functools.partial(query, "a", "acme", api_key=KEY)), ["limit"], ["a", "acme", 10, KEY]),
        (functools.partial(functools.partial(query, "a"), "acme"), ["limit", "api_key"], ["a", "acme", 10, "none"]),
        (functools.partial(query, sql="a"), ["tenant", "limit", "api_key"], ["a", "t", 10, "none"]),
        (functools.partial(query, "a", "b", 1, api_key=KEY), [], ["a", "b", 1, KEY]),
    ],
)
async def test_arguments_bound_at_any_position_are_hidden(
    function: Any, visible: list[str], result: Any
) -> None:  # P26
    tested_tool = tool(function, name="query")
    assert list(tested_tool.definition.parameters["properties"]) == visible
    assert await call_tool(tested_tool, **({"tenant": "t"} if "tenant" in visible else {})) == result


async def test_bound_context_and_deps_need_no_json_form() -> None:  # P26
    own: RunContext[Any] = RunContext(deps="own")
    tested_tool = tool(functools.partial(context_and_database, own, Database()), name="a")
    by_name = tool(functools.partial(context_and_database, ctx=own, db=Database()), name="b")
    database_only = tool(functools.partial(context_and_database, db=Database()), name="c")
    for each, deps in ((tested_tool, "own"), (by_name, "own"), (database_only, "run")):
        assert list(each.definition.parameters["properties"]) == ["sql"]
        assert await call_tool(each, sql="x") == ["x", f"Database({KEY})", deps]
        with pytest.raises(ToolError, match="- db: there is no such parameter"):
            await call_tool(each, sql="x", db=1)


def free(sql: str, *, tenant: str, **options: str) -> None: ...


def test_bound_keywords_of_a_function_with_free_keywords_are_refused() -> None:  # P26
    with pytest.raises(ConfigurationError, match=r"'options' is \*\*options") as caught:
        tool(functools.partial(free, tenant="acme", api_key=KEY), name="free")
    assert KEY not in str(caught.value)


async def test_decorator_may_expose_an_argument_with_a_bound_name() -> None:  # P26
    def wrapper(**kwargs: Any) -> Any:
        return BY_KEYWORD(**kwargs)

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=str) for name in ("sql", "tenant")]
    wrapper.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    wrapper.__wrapped__ = BY_KEYWORD  # pyright: ignore[reportFunctionMemberAccess]
    tested_tool = tool(wrapper, name="query")
    assert list(tested_tool.definition.parameters["properties"]) == ["sql", "tenant"]
    assert await call_tool(tested_tool, sql="a", tenant="t") == ["a", "t", 10, KEY]


@dataclass
class Order:
    item: str
    api_key: str
    note: str = ""


async def test_partial_of_a_class_hides_its_bound_arguments_in_the_description() -> None:  # P26
    tested_tool = tool(functools.partial(Order, api_key=KEY), name="order")
    assert list(tested_tool.definition.parameters["properties"]) == ["item", "note"]
    assert "api_key" not in tested_tool.definition.description
    assert await call_tool(tested_tool, item="tea") == Order("tea", KEY)


def test_messages_about_partials_and_objects_hide_their_values() -> None:  # P26
    with pytest.raises(ConfigurationError, match=r"a functools.partial of query has no name") as caught:
        as_tool(functools.partial(query, api_key=KEY))
    assert KEY not in str(caught.value)

    @dataclass
    class Job:
        api_key: str = KEY

        def __call__(self) -> None: ...

    with pytest.raises(ConfigurationError, match="an object of type") as caught:
        as_tool(Job())
    assert KEY not in str(caught.value)
    function: Any = query
    with pytest.raises(ConfigurationError, match="its bound arguments do not match the function") as caught:
        tool(functools.partial(function, 1, 2, 3, 4, 5, 6, api_key=KEY), name="query")
    assert KEY not in str(caught.value)


def test_approval_cannot_contain_a_bound_argument() -> None:  # P26
    with pytest.raises(ConfigurationError):
        tool(functools.partial(query, **BOUND), name="query", approve="For {tenant}?")


async def test_events_and_requests_of_a_run_hide_bound_arguments(caplog: Any) -> None:  # P26
    tested_tool = tool(functools.partial(query_without_echo, **BOUND), name="query")
    model = ScriptedModel([scripted("query", sql="a"), scripted("query", sql="a", tenant="other")], "done")
    async with Agent(model, tools=[tested_tool]).run("go") as run:
        events = [event async for event in run.events]
    assert KEY not in "".join(event.model_dump_json() for event in events)
    assert KEY not in repr(model.requests) + caplog.text
    errors = sorted(event.error or "" for event in events if event.kind == "tool-complete")
    assert errors[0] == ""
    assert "there is no such parameter (there are: sql, limit)" in errors[1]


def query_without_echo(sql: str, tenant: str, limit: int = 10, *, api_key: str) -> int:
    assert tenant == "acme"
    assert api_key == KEY
    return limit


def prompt(task: str, tenant: str, api_key: str) -> str:
    """Hand over a task.

    Args:
        task: What to do.
        tenant: For whom.
    """
    return f"{task} for {tenant}"


async def test_agent_tool_hides_the_bound_arguments_of_its_prompt() -> None:  # P26
    function = functools.partial(prompt, tenant="acme", api_key=KEY)
    agent = Agent(ScriptedModel("done"), name="helper")
    tested_tool = agent.as_tool(prompt=function)
    assert list(tested_tool.definition.parameters["properties"]) == ["task"]
    assert tested_tool.definition.description == "Hand over a task."

    served = make_agent_tools({"helper": agent}, {"helper": AgentTool(prompt=function)})["helper"]
    assert list(served.tool.input_schema["properties"]) == ["task", "context_id"]
    assert served.tool.description == "Hand over a task."
    assert KEY not in served.tool.model_dump_json()
    assert await served.make_prompt({"task": "count"}) == ("count for acme", None)
    with pytest.raises(ToolError, match="there is no such parameter"):
        await served.make_prompt({"task": "count", "tenant": "other"})


class Options(BaseModel):
    key: SecretStr = SecretStr(KEY)
    size: int = 1


@dataclass
class Settings:
    keys: list[SecretStr] = field(default_factory=lambda: [SecretStr(KEY)])


def secret(
    key: SecretStr = SecretStr(KEY),  # noqa: B008
    keys: tuple[SecretStr, ...] = (SecretStr(KEY),),
    options: Options = Options(),  # noqa: B008
    settings: Annotated[Settings, "note"] = Settings(),  # noqa: B008
    size: int = 2,
) -> list[Any]:
    return [key.get_secret_value(), options.key.get_secret_value(), settings.keys[0].get_secret_value(), keys, size]


async def test_secret_defaults_are_not_in_the_schema() -> None:  # P26
    tested_tool = tool(secret)
    text = json.dumps(tested_tool.definition.parameters)
    assert KEY not in text
    assert "**" not in text
    assert tested_tool.definition.parameters["properties"]["size"]["default"] == 2
    assert (await call_tool(tested_tool))[:3] == [KEY, KEY, KEY]
