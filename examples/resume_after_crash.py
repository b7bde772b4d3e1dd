"""Resume after a crash: a process that pays bills is really killed in the middle, and another process continues.

Nothing is done twice. Nobody knows whether the interrupted payment went out, so it is not repeated: the model reads
that its effect is unknown, and looks it up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rxloop import Agent, Event, SqliteEventLog, ToolCompleteEvent, ToolStartEvent, op, tool
from rxloop.testing import ScriptedModel, call

BILLS = {"rent": 900, "power": 60, "phone": 25}


def accountant(folder: Path, *, killed: bool) -> Agent[None, str]:
    """Make an agent that pays bills; with `killed`, its process dies while it pays the second one."""
    book = folder / "payments.txt"

    @tool
    async def pay(bill: str) -> str:
        """Pay a bill."""
        with book.open("a") as file:
            file.write(f"{bill} {BILLS[bill]}\n")
        if killed and bill == "power":
            # The money is gone, and so is the process, before anybody hears of it.
            os.kill(os.getpid(), signal.SIGKILL)
        return f"Paid {BILLS[bill]} for {bill}."

    @tool(idempotent=True)
    async def payments() -> list[str]:
        """List the payments made."""
        return book.read_text().splitlines()

    # A scripted model; a real one reads the same results and decides for itself. The second process makes a model that
    # has answered nothing yet: what was said before the crash comes from the log.
    before = [call("pay", "call_1", bill="rent"), call("pay", "call_2", bill="power")]
    after = [call("payments", "call_3"), call("pay", "call_4", bill="phone"), "All three bills are paid."]
    model = ScriptedModel(*(before if killed else after))
    return Agent(model, tools=[pay, payments], log=SqliteEventLog(folder / "runs.db"))


def show(event: Event) -> None:
    """Print a call or its result."""
    if isinstance(event, ToolStartEvent):
        print(f"  {event.seq:>3} -> {event.call.name}({', '.join(map(str, event.call.arguments.values()))})")
    elif isinstance(event, ToolCompleteEvent):
        print(f"  {event.seq:>3} <- {event.content}")


async def first(folder: Path) -> None:
    """Pay until the process is killed."""
    async with accountant(folder, killed=True) as agent:
        run = agent.run("Pay the bills.")
        run.events.subscribe(show)
        await run


async def then(folder: Path) -> None:
    """Resume unfinished runs, as a service does when it starts."""
    async with accountant(folder, killed=False) as agent:
        assert isinstance(agent.log, SqliteEventLog)
        for record in await agent.log.list_runs(unfinished=True):
            print(f"\nthe run was left at event {record.seq}; it goes on")
            run = agent.resume(record.task_id)
            run.pipe(op.of_type(ToolStartEvent, ToolCompleteEvent)).subscribe(show)
            print(f"\n{(await run).output}")
        await agent.log.aclose()


def main() -> None:
    """Run the first part in a process that dies, and the second part here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("a process pays the bills")
        died = subprocess.run([sys.executable, __file__, str(folder)], check=False)
        print(f"it was killed by signal {-died.returncode}; paid so far:")
        print("".join(f"      {line}\n" for line in (folder / "payments.txt").read_text().splitlines()), end="")
        asyncio.run(then(folder))
        print("".join(f"      {line}\n" for line in (folder / "payments.txt").read_text().splitlines()), end="")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(first(Path(sys.argv[1])))
    else:
        main()
