"""Thoughts in the viewer."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from reactivex import Observable, concat
from typing_extensions import override

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    ModelRequest,
    Runtime,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtStreamEvent,
    Usage,
    sequential_thinking,
    tool,
)
from rxloop.cli.service.adapters import create_adapters, create_application
from rxloop.protocol.events import SessionLink, ThoughtDeltaEvent
from rxloop.stream.sources import Push, from_task
from rxloop.testing import ScriptedCall, ScriptedModel, call
from support.api_server import serve_app
from support.browser import expect
from support.viewer_pages import find_inspector, find_rows, get_text, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]

BOXES = """[...document.querySelectorAll('.thought-graph .node')].map(each => {
    const { x, y, width, height } = each.getBoundingClientRect();
    return [+each.dataset.seq, x, y, width, height];
})"""


def think(number: int, text: str, **more: Any) -> ScriptedCall:
    more |= {"thought": text, "thoughtNumber": number, "totalThoughts": 9, "nextThoughtNeeded": number < 9}
    return call("sequentialthinking", **more)


class PonderingModel(ScriptedModel):
    """Scripted model that reasons before each turn, in two pieces, and waits for an event after the first one."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(*turns)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    @override
    def call(self, request: ModelRequest) -> Observable[Event]:
        async def ponder(push: Push[Event]) -> None:
            push(ThoughtDeltaEvent(delta="The rain "))
            self.reached.set()
            await self.go_on.wait()
            self.go_on.clear()
            push(ThoughtDeltaEvent(delta="decides."))
            push(ThoughtStreamEvent(content="The rain decides.", source="reasoning"))

        return concat(from_task(ponder), super().call(request))


async def test_earlier_thoughts_do_not_move_while_thoughts_are_added(page: Page) -> None:
    model = PonderingModel(
        think(1, "Rain first."),
        think(2, "Oslo is dry."),
        think(3, "That was Friday.", isRevision=True, revisesThought=2),
        think(3, "Bergen has wind.", branchFromThought=1, branchId="bergen"),
        think(4, "Bergen is out.", branchId="bergen"),
        call("think_aloud", thought="Oslo it is.", thought_type="decision", confidence=0.8, alternatives=["Bergen"]),
        "Oslo.",
    )
    agent = Agent(model, tools=[sequential_thinking("planner")])
    runtime = Runtime({"guide": agent}, log=MemoryEventLog())
    app = create_application(create_adapters(runtime, ["view"], {}), (), "127.0.0.1", keys=False)
    rows = find_rows(page, "Thoughts")
    live = page.locator(".live-thought")
    async with runtime, serve_app(app) as url:
        run = await runtime.start("guide", "Where?")
        await page.goto(f"{url}/view/#/r/{run.task_id}/thoughts")
        before: list[Any] = []
        for step in range(7):
            await asyncio.wait_for(model.reached.wait(), 30)
            model.reached.clear()
            await expect(live).to_have_text("thinking The rain")
            await expect(rows).to_have_count(2 * step)
            if step == 3:
                # Later thoughts refer to thoughts whose ids the page has not received.
                await page.reload()
                await expect(rows).to_have_count(2 * step)
            boxes = await page.evaluate(BOXES)
            assert boxes[: len(before)] == before
            assert len(boxes) == 2 * step
            before = boxes
            model.go_on.set()
        await expect(rows).to_have_count(13)
        await expect(live).to_have_count(0)
        assert (await page.evaluate(BOXES))[:12] == before
        shown = await get_text(rows)
        assert shown[1].startswith("2 reasoning Rain first.")
        assert "replaced by 6" in shown[3]
        assert "replaces 4" in shown[5]
        assert "follows 2, branch bergen" in shown[7]
        assert "follows 8, branch bergen" in shown[9]
        assert "decision Oslo it is. instead of: Bergen 0.80" in shown[11]
        graph = page.locator(".thought-graph")
        await expect(graph.locator(".node.old")).to_have_count(1)
        await expect(graph.locator(".edge-line.replaced")).to_have_count(1)
        await expect(graph.locator(".edge-line.parent")).to_have_count(4)
        await rows.nth(9).hover()
        await expect(rows.and_(page.locator(".hovered"))).to_have_count(3)
        await rows.nth(9).click()
        await expect(find_inspector(page)).to_contain_text("Bergen is out.")
        # The same page, from the log.
        await page.reload()
        await expect(rows).to_have_count(13)
        await expect(rows.nth(11)).to_contain_text("instead of: Bergen")
        assert await get_text(rows) == shown


async def test_list_follows_new_thoughts_at_its_end(page: Page) -> None:
    model = PonderingModel(
        [call("think_aloud", thought=f"Thought {number}", thought_type="reasoning") for number in range(30)], "Done."
    )
    runtime = Runtime({"guide": Agent(model)}, log=MemoryEventLog())
    app = create_application(create_adapters(runtime, ["view"], {}), (), "127.0.0.1", keys=False)
    await page.set_viewport_size({"width": 1200, "height": 600})
    async with runtime, serve_app(app) as url:
        run = await runtime.start("guide", "Where?")
        await page.goto(f"{url}/view/#/r/{run.task_id}/thoughts")
        for _ in range(2):
            await asyncio.wait_for(model.reached.wait(), 30)
            model.reached.clear()
            await expect(page.locator(".live-thought")).to_have_text("thinking The rain")
            model.go_on.set()
            await asyncio.sleep(0)
        await expect(find_rows(page, "Thoughts").filter(has_text="Thought 29")).to_be_in_viewport()


async def test_thoughts_about_a_result_follow_the_thought_before_the_call(page: Page) -> None:
    @tool
    async def look() -> str:
        """Look around."""
        return "rain"

    def reason(text: str, **more: Any) -> ScriptedCall:
        return call("think_aloud", thought=text, thought_type="observation", **more)

    model = PonderingModel([reason("I look."), call("look", "c")], [reason("It rains.", related_to="c")], "Rain.")
    runtime = Runtime({"guide": Agent(model, tools=[look])}, log=MemoryEventLog())
    app = create_application(create_adapters(runtime, ["view"], {}), (), "127.0.0.1", keys=False)
    row = find_rows(page, "Thoughts").filter(has_text="It rains.")
    async with runtime, serve_app(app) as url:
        run = await runtime.start("guide", "Where?")
        await page.goto(f"{url}/view/#/r/{run.task_id}/thoughts")
        for _ in range(3):
            await asyncio.wait_for(model.reached.wait(), 30)
            model.reached.clear()
            model.go_on.set()
        await expect(row).to_contain_text(re.compile("It rains. *follows 2"))
        # All types fit into their column.
        assert await row.locator("b").evaluate(
            "each => each.parentElement.scrollWidth <= each.parentElement.clientWidth"
        )
        await page.reload()
        await expect(row).to_contain_text(re.compile("It rains. *follows 2"))


async def store_thoughts(log: MemoryEventLog, count: int) -> None:
    """Store a run with a number of thoughts: a branch that is merged at the end, and single thoughts."""
    envelope: dict[str, Any] = {"task_id": "deep", "context_id": "talk", "attempt": 1}
    events: list[Event] = [
        TaskEvent(messages=[Message.user("Think.")], model="m", agent_name="thinker", seq=1, timestamp=0, **envelope),
        StatusUpdateEvent(state="working", seq=2, timestamp=0, **envelope),
    ]

    def add(event: Event) -> None:
        events.append(event.model_copy(update={**envelope, "seq": len(events) + 1, "timestamp": 20 * len(events)}))

    add(LLMCallEvent(iteration=1, model="m", message_count=1, tool_count=1, estimated_input_tokens=9, step="1"))
    for number in range(1, count + 1):
        is_last = number == count
        link = SessionLink(session_id="s", number=number, total=count, merges_id="t3") if is_last else None
        add(
            ThoughtStreamEvent(
                thought_id=f"t{number}",
                thought_type="reasoning",
                content=f"Thought {number}",
                related_to="t2" if is_last else f"t{max(number // 2, 1)}" if number > 1 else None,
                session=link,
                step="1",
            )
        )
    add(ContentCompleteEvent(content="Done.", finish_reason="stop", step="1"))
    add(StatusUpdateEvent(state="completed", final=True, content="Done.", usage=Usage()))
    for start in range(0, len(events), 1_000):
        await log.append("deep", events[start : start + 1_000], expected_seq=start)


async def test_thousands_of_thoughts_have_few_rows_and_are_reached_by_keyboard(page: Page) -> None:
    log = MemoryEventLog()
    await store_thoughts(log, 5_000)
    rows = find_rows(page, "Thoughts")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/deep")
        await page.get_by_role("tab", name="Thoughts").click()
        await expect(page.get_by_role("grid", name="Thoughts")).to_have_attribute("aria-rowcount", "5000")
        assert await rows.count() <= 40
        assert await page.locator(".thought-graph path").count() <= 150
        await rows.first.focus()
        await page.keyboard.press("Enter")
        await expect(find_inspector(page)).to_contain_text("Thought 1")
        for key, number in (("l", 2), ("l", 4), ("l", 8), ("h", 4), ("h", 2), ("ArrowDown", 3), ("ArrowUp", 2)):
            await page.keyboard.press(key)
            await page.wait_for_url(f"**at=1.{number + 3}.0*")
        await page.get_by_role("button", name="Last event").click()
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("ArrowDown")
        selected = rows.and_(page.locator(".selected"))
        await expect(selected).to_contain_text("follows 2, merges 3")
        await find_inspector(page).get_by_role("button", name="merges thought 3").click()
        await expect(selected).to_contain_text("Thought 3")
        assert await rows.count() <= 40


@pytest.mark.parametrize("count", [39, 200])
async def test_large_graphs_have_a_map_that_opens_thoughts(page: Page, count: int) -> None:
    log = MemoryEventLog()
    await store_thoughts(log, count)
    thoughts = page.get_by_role("img", name=f"Map of {count} thoughts")
    selected = find_rows(page, "Thoughts").and_(page.locator(".selected"))
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/deep/thoughts")
        await expect(find_rows(page, "Thoughts").first).to_be_visible()
        await expect(thoughts).to_have_count(1 if count == 200 else 0)
        if count < 200:
            return
        box = await thoughts.bounding_box()
        assert box
        await thoughts.click(position={"x": box["width"] * 0.7525, "y": 20})
        await expect(selected).to_contain_text("Thought 151")
        await expect(selected).to_be_in_viewport()
        shown = thoughts.locator(".shown")
        first, width = float(await shown.get_attribute("x") or 0), float(await shown.get_attribute("width") or 0)
        assert first < 150 < first + width < count
        await page.keyboard.press("ArrowDown")
        await expect(selected).to_contain_text("Thought 152")


async def test_run_without_thoughts_explains_how_to_get_them(page: Page) -> None:
    log = MemoryEventLog()
    run = Agent(ScriptedModel("Hello."), name="clerk", log=log, thoughts=False).run("Hi.")
    await run
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{run.task_id}/thoughts")
        await expect(page.get_by_role("main")).to_contain_text("Agents think aloud with the tool think_aloud")
