"""Comparison of `rxloop mcp sequential-thinking` with the reference server.

The reference server is an npm package and needs Node.js, so this program must be started manually:

    npm install --prefix /tmp/reference @modelcontextprotocol/server-sequential-thinking
    python benchmarks/mcp_official.py \
        node /tmp/reference/node_modules/@modelcontextprotocol/server-sequential-thinking/dist/index.js

The official client sends the same generated calls to both servers over stdio: thoughts, revisions, branches, and
invalid calls. If the reference server accepts a call, the five keys of both responses must be equal. The history of a
connection includes all calls, so a call accepted by only one server affects later responses.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

OURS = [sys.executable, "-m", "rxloop", "mcp", "sequential-thinking"]
TOOL = "sequentialthinking"
KEYS = ("thoughtNumber", "totalThoughts", "nextThoughtNeeded", "branches", "thoughtHistoryLength")
NUMBERS = ("thoughtNumber", "totalThoughts", "revisesThought", "branchFromThought")
TRUTHS = ("nextThoughtNeeded", "isRevision", "needsMoreThoughts")

ODD_NUMBERS: list[Any] = [
    "2", " 3 ", "1.0", "1e1", "1e+01", "1E003", "0x10", "0XfF", "0b11", "0o7", ".5e1", "5.", "00012", "+3", "\ufeff2",
    "4\u00a0", "\t4\n", "\u20284", "4\x1c", "4\x85", "-1", "-0x1", "0", "", " ", "1.5", "1e400", "1e-1", "10e-1",
    "\u0661", "one", "1_000", "1,000", "Infinity", "NaN", "0x", "1e", ".", "9007199254740991", "9007199254740992",
    "1n", "9" * 200, "0" * 150 + "7", "1" + "0" * 9, "5.0000000000000000001", 2.0, 0, -1, 1.5, 1e15, 2**53 - 1, 2**53,
    10**30, None, True, False, [], [3], ["4"], [[5]], [1, 2], [True], [None], [" 0x2 "], {}, {"n": 1}, [{}],
]  # fmt: skip
ODD_TRUTHS: list[Any] = ["true", "FALSE", "True", "tRuE", " true", "yes", "on", "1", "", 0, 1, None, [], [True], {}]
NAMES: list[Any] = [
    "a", "b", "branch-1", "Ünïcode", "名前", "🌿", "e\u0301", "é", "two words", "a\nb", "\u0000", "x" * 3_000, "\u2028",
    "10", "2", "1", "01", "-1", "1.5", "4294967294", "4294967295", "4294967296", "0", "", " ", "   ", "\u00a0", "\t",
    "__proto__", "constructor", "toString", "hasOwnProperty", "valueOf", "null", "undefined", "None", "length", " a",
    "a ", "A",
]  # fmt: skip
ODD_NAMES: list[Any] = [None, 5, 5.5, True, False, [], ["a"], {}]
THOUGHTS: list[Any] = [
    "", " ", "\n\n", "A thought.", "Zwei Fälle: ä, ö, ü.", "思考", "🌿🔄💭", "a\u0000b", "\u2028\u2029", "\ufeff",
    '"\\/', "\x1b[31mred\x1b[0m", "{}", "null", "</script>", "\r\n", "\x7f\x9f", "e\u0301" * 50,
]  # fmt: skip
ODD_THOUGHTS: list[Any] = [None, 5, True, [], {}, ["a"]]
EXTRAS: list[tuple[str, Any]] = [
    *(("extra", 1), ("thought_number", 7), ("branch_id", "snake"), ("branch_from_thought", 1), ("__proto__", {"a": 1})),
    *(("constructor", None), ("is_revision", True), ("total_thoughts", 99), ("", ""), ("thoughtHistory", [])),
]


def ordinary(random: random.Random, number: int, names: list[Any]) -> dict[str, Any]:
    """Generate a plausible thought."""
    total = max(1, number + random.randint(-2, 5))
    call: dict[str, Any] = {
        "thought": random.choice(THOUGHTS) + f" {number}",
        "nextThoughtNeeded": random.random() < 0.9,
        "thoughtNumber": number,
        "totalThoughts": total,
    }
    kind = random.random()
    if kind < 0.2:
        call |= {"isRevision": True, "revisesThought": random.randint(1, number + 1)}
    elif kind < 0.5:
        call |= {"branchFromThought": random.randint(1, number + 1), "branchId": random.choice(names)}
    elif kind < 0.55:
        call["needsMoreThoughts"] = True
    return call


def odd(random: random.Random, call: dict[str, Any], names: list[Any]) -> dict[str, Any]:
    """Generate a thought with invalid or unusual arguments."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        match random.randrange(8):
            case 0 | 1:
                call[random.choice(NUMBERS)] = random.choice(ODD_NUMBERS)
            case 2:
                call[random.choice(TRUTHS)] = random.choice(ODD_TRUTHS)
            case 3:
                call["branchId"] = random.choice([*names, *names, *ODD_NAMES])
            case 4:
                call["branchFromThought"] = random.choice((1, 2, "1", None, 77))
            case 5:
                call["thought"] = random.choice([*THOUGHTS, *ODD_THOUGHTS, "long " * random.choice((100, 20_000))])
            case 6:
                name, value = random.choice(EXTRAS)
                call[name] = value
            case _:
                call.pop(random.choice(list(call)), None)
    return call


def calls(seed: int, count: int) -> list[dict[str, Any]]:
    """Generate the calls of a connection."""
    chance = random.Random(seed)
    names = chance.sample(NAMES, 5)
    # Some connections have only plausible calls, so that the servers keep the same history.
    oddness = chance.choice((0.0, 0.3, 0.6))
    made: list[dict[str, Any]] = []
    number = 1
    for _ in range(count):
        call = ordinary(chance, number, names)
        made.append(odd(chance, call, names) if chance.random() < oddness else call)
        number = 1 if chance.random() < 0.05 else number + 1
    return made


@dataclass
class Answer:
    """Response of a server."""

    keys: dict[str, Any] | None
    """Official keys, or None if the call was refused."""
    counted: bool
    """True if the thought was added to the history."""
    text: str


@dataclass
class Report:
    """Results of the comparison."""

    counts: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, kind: str, call: dict[str, Any], theirs: Answer, ours: Answer) -> None:
        """Count a call."""
        self.counts[kind] += 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < 5 and kind.startswith("!"):
            shown.append(f"{json.dumps(call)[:300]}\n    theirs {theirs.text[:300]!r}\n    ours   {ours.text[:300]!r}")


async def answers(command: list[str], made: list[dict[str, Any]], log: TextIO) -> list[Answer]:
    """Return the responses of a server to the calls of a connection."""
    given = StdioServerParameters(command=command[0], args=command[1:], env={**os.environ})
    found: list[Answer] = []
    async with Client(stdio_client(given, errlog=log), mode="legacy") as client:
        for call in made:
            try:
                result = await client.call_tool(TOOL, call)
            except MCPError as error:
                found.append(Answer(None, False, str(error)))
                continue
            text = "".join(getattr(item, "text", "") for item in result.content)
            if result.is_error:
                # If the reference server fails after the validation, the thought is already in its history.
                found.append(Answer(None, '"status": "failed"' in text and '"code"' not in text, text))
                continue
            said, structured = json.loads(text), result.structured_content or {}
            if said != structured:
                raise SystemExit(f"{command[0]}: text and structured content differ: {text} {structured}")
            found.append(Answer({key: said[key] for key in KEYS}, True, text))
    return found


def compare(report: Report, made: list[dict[str, Any]], theirs: list[Answer], ours: list[Answer]) -> None:
    """Count differences between the responses of a connection."""
    ahead = 0
    own: set[str] = set()
    """Branches of thoughts accepted only by our server. The reference server may create them later."""
    for call, their, our in zip(made, theirs, ours, strict=True):
        ahead += our.counted - their.counted
        if our.keys is None or their.keys is None:
            if our.keys is not None and call.get("branchId") is not None:
                own.add(str(call["branchId"]))
            report.add(_refused(call, their, our), call, their, our)
            continue
        count = our.keys["thoughtHistoryLength"] - ahead
        mine = {**our.keys, "thoughtHistoryLength": count, "branches": _without(our.keys["branches"], own)}
        other = {**their.keys, "branches": _without(their.keys["branches"], own)}
        if our.keys == their.keys:
            kind = "both, equal"
        elif mine == other:
            kind = "both, equal but for earlier calls"
        elif {**mine, "branches": sorted(mine["branches"])} == {**other, "branches": sorted(other["branches"])}:
            whole = any(name.isdecimal() for name in mine["branches"])
            kind = "both, other order of branches" if whole else "! order"
        else:
            kind = "! different"
        report.add(kind, call, their, our)


def _without(branches: list[str], names: set[str]) -> list[str]:
    return [name for name in branches if name not in names]


def _refused(call: dict[str, Any], theirs: Answer, ours: Answer) -> str:
    if theirs.keys is None and ours.keys is None:
        return "both refuse"
    if theirs.keys is None:
        if theirs.counted:
            return "only ours: a name that every object of JavaScript has"
        if any(value is None for value in call.values()):
            return "only ours: null for an optional field"
        if type(call.get("branchId")) is int:
            return "only ours: a number as a name"
        spaced = any(str(call.get(name)).strip() != str(call.get(name)) for name in NUMBERS)
        return "only ours: a control character for a space" if spaced else "! only ours"
    return "only theirs: true as a number" if any(call.get(name) is True for name in NUMBERS) else "! only theirs"


async def main() -> int:
    """Compare the servers and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command of the reference server")
    parser.add_argument("--connections", type=int, default=40)
    parser.add_argument("--calls", type=int, default=100, help="calls per connection")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if not given.command:
        parser.error("missing command of the reference server")
    report = Report()
    started = time.perf_counter()
    with Path(os.devnull).open("w", encoding="utf-8") as log:  # noqa: ASYNC230
        for connection in range(given.connections):
            made = calls(given.seed * 1_000 + connection, given.calls)
            theirs, ours = await asyncio.gather(answers(given.command, made, log), answers(OURS, made, log))
            compare(report, made, theirs, ours)
    total = sum(report.counts.values())
    print(f"{total:,} calls in {given.connections} connections, {time.perf_counter() - started:.0f} s")
    for kind, count in report.counts.most_common():
        print(f"{count:>7,}  {kind}")
        for example in report.examples[kind]:
            print(f"    {example}")
    return 1 if any(kind.startswith("!") for kind in report.counts) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
