"""The recipe of docs/durability.md that continues orphaned runs at the start of a program, in two processes at once."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from textwrap import indent

from rxloop import SqliteEventLog

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from rxloop import Agent, SqliteEventLog, tool
from rxloop.testing import ScriptedModel, call

path, name, action = sys.argv[1:]
log = SqliteEventLog(path)

@tool
async def work(effect: str) -> str:
    "Work."
    with open(Path(path).with_name("effects"), "a") as file:
        file.write(effect + "\\n")
    if action == "die":
        os._exit(9)
    return "worked"

@tool(approve="Pay?")
async def pay() -> str:
    "Pay."
    return "paid"

async def main():
    if action == "die":
        agent = Agent(ScriptedModel(call("work", effect=name)), name=name, tools=[work], log=log)
        await agent.run("Work.", context_id=name)
    elif action == "ask":
        await Agent(ScriptedModel(call("pay")), name=name, tools=[pay], log=log).run("Pay.", context_id="asked")
    else:
        agent = Agent(ScriptedModel("Done.", "Done."), name=name, tools=[work, pay], log=log)
        print("ready", flush=True)
        sys.stdin.readline()
RECIPE
    await log.aclose()

asyncio.run(main())
"""


def read_recipe() -> str:
    """Return the recipe."""
    page = (ROOT / "docs/durability.md").read_text(encoding="utf-8")
    [recipe] = re.findall(r"```python\n(for record in await log\.list_orphaned\(\):\n.*?)```", page, re.DOTALL)
    return indent(recipe, " " * 8)


async def start(path: Path, name: str, action: str) -> asyncio.subprocess.Process:
    program = PROGRAM.replace("RECIPE", read_recipe())
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-c", program, str(path), name, action)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


async def test_recipe_continues_own_orphaned_runs_once_in_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    for name, action in (("clerk", "die"), ("billing", "die"), ("clerk", "ask")):
        process = await start(path, name, action)
        _, errors = await process.communicate()
        assert process.returncode == (9 if action == "die" else 0), errors.decode()
    # The second round finds no orphaned run, but still the approval that nobody has answered.
    for _ in range(2):
        processes = [await start(path, "clerk", "recipe") for _ in range(2)]
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        ends = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
        assert [process.returncode for process in processes] == [0, 0], ends
    log = SqliteEventLog(path)
    states = {(record.agent_name, record.context_id): record.state for record in await log.list_runs()}
    await log.aclose()
    assert states == {
        ("clerk", "clerk"): "completed",
        ("billing", "billing"): "working",
        ("clerk", "asked"): "input-required",
    }
    assert (tmp_path / "effects").read_text().split() == ["clerk", "billing"]


def test_no_text_resumes_runs_that_other_processes_execute() -> None:
    texts = [
        path.read_text(encoding="utf-8") for pattern in ("*.md", "*.py") for path in ROOT.glob(f"[!t.]*/**/{pattern}")
    ]
    texts.append((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(texts) > 500
    recipes = [re.findall(r"unfinished=True\).{,60}\n?.{,60}resume\(record", text) for text in texts]
    assert not [recipe for recipe in recipes if recipe]
