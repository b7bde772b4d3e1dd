"""Working folder for command line tests, with a database, an offline model and tools."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from typer.testing import CliRunner, Result

from rxloop.cli.app import app
from rxloop.testing import Conversation, Reply

SOURCE = Path(__file__).parents[2] / "src"

TOOLS = '''
import asyncio
import os
from typing import Annotated

from pydantic import Field

from rxloop import Agent, RunContext, tool


@tool
async def get_weather(ctx: RunContext[None], city: str) -> dict:
    """Current weather in a city."""
    ctx.progress(f"asking for {city}")
    return {"temperature": {"Oslo": 18.0, "Bergen": 13.0}[city], "unit": "C", "sky": "rain"}


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


@tool
async def book(ctx: RunContext[None], hotel: str) -> str:
    """Book a room."""
    name = await ctx.ask("In whose name?", answer=str)
    return f"booked for {name}"


@tool
async def rate(ctx: RunContext[None]) -> str:
    """Rate the room."""
    stars = await ctx.ask("How many stars?", answer=Annotated[int, Field(ge=1, le=5)])
    return f"{stars} stars"


@tool
async def wait(ctx: RunContext[None]) -> str:
    """Wait until a file is there."""
    ctx.progress("begun")
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return "waited"


@tool
async def nap() -> str:
    """Sleep for a moment."""
    await asyncio.sleep(0.4)
    return "awake"


@tool
async def resist(ctx: RunContext[None]) -> str:
    """Wait for ever, whoever wants it to stop."""
    ctx.progress("begun")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass


@tool
async def enter(ctx: RunContext[None]) -> str:
    """Sign in."""
    token = await ctx.require_auth("the bank", url="https://bank.example/codes")
    return f"in with {len(token)} characters"


tools = [get_weather, pay, book, rate, wait, nap, resist, enter]
number = 5


def agent():
    return Agent(os.environ["AGENT_MODEL"], name="mine", tools=tools, thoughts=False)


agent_itself = Agent("ollama:none", name="itself")
bare = Agent("ollama:none", thoughts=False)
'''


MARKDOWN = """# Colours

- red
- green

| name | wave |
|---|--:|
| red | 650 |
| green | 550 |

```python
print("red")
```

See [the list](https://colours.example/all).
"""


def rule(conversation: Conversation) -> Reply | None:
    """Choose the reply of the offline model from keywords in the question."""
    question = conversation.question
    if "break" in question:
        raise KeyError("broken")
    if "escape" in question:
        return Reply(text="\x1b[31mred\x1b[0m\x07")
    if "Markdown" in question:
        return Reply(text=MARKDOWN)
    results = [
        call.result
        for call in conversation.calls
        if call.name in ("pay", "book", "rate", "wait", "nap", "resist", "enter")
    ]
    if results:
        return Reply(text=f"Done: {', '.join(map(str, results))}.")
    calls: list[tuple[str, dict[str, Any]]] = []
    if "pay" in question:
        calls.append(("pay", {"amount": 5}))
    if "book" in question:
        calls.append(("book", {"hotel": "Bristol"}))
    for name in ("rate", "wait", "nap", "resist", "enter"):
        if name in question:
            return Reply(text="Let me see. ", calls=[(name, {})])
    return Reply(calls=calls) if calls else None


@dataclass
class Workspace:
    """Folder with a database, used as the working directory of the command."""

    folder: Path
    url: str
    env: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        (self.folder / "kit.py").write_text(TOOLS, encoding="utf-8")
        self.env |= {
            "RXLOOP_DB": str(self.database),
            "RXLOOP_MODEL": f"{self.url}#demo",
            "AGENT_MODEL": f"{self.url}#demo",
            "XDG_DATA_HOME": str(self.folder / "data"),
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "COLUMNS": "120",
            "PYTHONPATH": str(SOURCE),
            "PYTHONUTF8": "1",
            "PATH": os.environ.get("PATH", os.defpath),
        }

    @property
    def database(self) -> Path:
        return self.folder / "runs.db"

    def run(self, *arguments: str, stdin: str | None = None, code: int | None = 0, **env: str) -> Result:
        """Run the command in this process and check its exit code unless `code` is None."""
        keys = {name: None for name in os.environ if name.endswith("_API_KEY")}
        result = CliRunner().invoke(app, arguments, input=stdin, env={**keys, **self.env, **env})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert code in (None, result.exit_code), result.output
        return result

    def process(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start the command in a new process."""
        command = [sys.executable, "-m", "rxloop", *arguments]
        for name in ("stdin", "stdout", "stderr"):
            options.setdefault(name, subprocess.PIPE)
        # The type checker assumes that any further option may enable text mode.
        popen: Any = subprocess.Popen
        return popen(command, cwd=self.folder, env=self.env, **options)

    def shell(self, line: str) -> subprocess.CompletedProcess[bytes]:
        """Run a bash command line, with `rxloop` on the path."""
        script = f'rxloop() {{ "{sys.executable}" -m rxloop "$@"; }}; {line}'
        return subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.env, capture_output=True, check=False, timeout=30
        )

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the output of `rxloop runs --json`."""
        return [orjson.loads(line) for line in self.run("runs", "--json", *arguments).stdout.splitlines()]

    def events(self, run: str = "last") -> list[dict[str, Any]]:
        """Return the output of `rxloop export --full`."""
        return [orjson.loads(line) for line in self.run("export", run, "--full").stdout.splitlines()]
