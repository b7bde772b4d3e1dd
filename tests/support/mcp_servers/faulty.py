"""MCP server that violates the protocol as its first argument specifies."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FAULT = sys.argv[1]
# A backtracking regular expression engine takes exponential time for this pattern.
ENDLESS = {"type": "string", "pattern": "^(a+)+$", "default": "a" * 60 + "!"}
FORM = {"type": "object", "properties": {"x": ENDLESS}}
TOOL: dict[str, Any] = {"name": "tell", "inputSchema": {"type": "object"}}
TOOLS = {
    "pattern": [{**TOOL, "outputSchema": FORM}],
    "number": [TOOL, {**TOOL, "name": "large", "inputSchema": {"type": "object", "maximum": 10**30}}],
}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call_tool(number: int, params: dict[str, Any]) -> None:
    if "LIAR_EFFECTS" in os.environ:
        with Path(os.environ["LIAR_EFFECTS"]).open("a") as file:
            file.write("called\n")
    result: dict[str, Any] = {"content": [{"type": "text", "text": "told"}]}
    match FAULT:
        case "pattern":
            result["structuredContent"] = {"x": ENDLESS["default"]}
        case "form":
            asked = {"message": "Well?", "requestedSchema": FORM}
            send(id="q", method="elicitation/create", params=asked)
            time.sleep(1)
        case "ask":
            form = {"type": "object", "properties": {"day": {"type": "integer"}}}
            send(id="q", method="elicitation/create", params={"message": "Which day?", "requestedSchema": form})
            answer = json.loads(sys.stdin.readline())
            result["content"][0]["text"] = answer["result"]["action"]
        case "progress":
            token = params["_meta"]["progressToken"]
            for progress, total in ((float("nan"), 1), (5, -1), (1e308, 1e-308), (3, 2)):
                send(
                    method="notifications/progress",
                    params={"progressToken": token, "progress": progress, "total": total},
                )
            time.sleep(0.2)
        case "flood":
            token = params["_meta"]["progressToken"]
            for progress in range(5_000):
                send(method="notifications/progress", params={"progressToken": token, "progress": progress})
        case "session":
            send(id=number, error={"code": -32600, "message": "Session terminated"})
            return
        case "shape":
            result = {"content": 5, "isError": os.environ["LIAR_TOKEN"]}
        case "bytes":
            sys.stdout.buffer.write(b"\xff\xfe\n")
        case _:
            pass
    send(id=number, result=result)


for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            known = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            send(id=message["id"], result={**known, "serverInfo": {"name": "liar", "version": "1"}})
        case "tools/list":
            send(id=message["id"], result={"tools": TOOLS.get(FAULT, [TOOL])})
        case "tools/call":
            call_tool(message["id"], message["params"])
        case _ if "id" in message and "method" in message:
            send(id=message["id"], error={"code": -32601, "message": "unknown"})
        case _:
            pass
