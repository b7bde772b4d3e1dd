"""What somebody at a terminal sees of nested agents."""

from __future__ import annotations

from families import editor, researcher, search, tokens
from runs import collect
from rxloop.cli.options import ThoughtLevel
from rxloop.cli.render import describe
from rxloop.testing import call


async def test_each_line_names_the_agents_down_to_the_one_it_is_of() -> None:
    inner = researcher(name="inner")
    turns = [[call("inner", prompt="deeper")], tokens("M.")]
    middle = researcher(*turns, name="middle", tools=[inner.as_tool(), search])
    events = await collect(editor(middle.as_tool("research")).run("q"))
    lines = [line.plain for event in events if (line := describe(event, ThoughtLevel.all)) is not None]
    assert [line.partition("  ")[0] for line in lines] == [
        '→ research(prompt="Oslo?")',
        "~ middle begins",
        'middle → inner(prompt="deeper")',
        "middle ~ inner begins",
        'middle > inner → search(question="Oslo")',
        "middle > inner ← search Oslo: found",
        "middle ~ inner completed",
        "middle ← inner A capital.",
        "~ middle completed",
        "← research M.",
    ]
