"""HTTP requests to the AG-UI adapter, without a client library."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

RUN_INPUT: dict[str, Any] = {
    "threadId": "t",
    "runId": "r",
    "protocolVersion": "1.0",
    "messages": [{"id": "m", "role": "user", "content": "Go."}],
}


async def post(url: str, body: Any, **headers: str) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Send a request, returning its frames and decoded events."""
    given = {"authorization": "Bearer ann-key", "content-type": "application/json", **headers}
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(url, content=content, headers=given)
    assert answer.status_code == 200
    written = [each + b"\n\n" for each in answer.content.split(b"\n\n") if each.startswith(b"data: ")]
    return written, [orjson.loads(each[6:]) for each in written]
