"""Agent of google-adk in a resumable app with a SQLite session service.

Modes: `` and `key` (the bank also receives a key). Resumed as in https://google.github.io/adk-docs/runtime/resume:
`run_async` with the invocation id, which is found in the events of the session.
"""

# Measured in a separate environment, which is unknown to the type checker.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models import Gemini
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.genai import types
from worker import PROMPT, Job, call_bank

USER = "ann"
os.environ |= {"GOOGLE_API_KEY": "none", "OTEL_SDK_DISABLED": "true", "GOOGLE_GENAI_USE_VERTEXAI": "false"}


async def run(job: Job, ready: Callable[[], None]) -> str:
    key = job.run if job.mode == "key" else None

    async def lookup_order(order: str) -> str:
        """Look up an order."""
        return await call_bank(job, "lookup_order")

    async def refund(order: str, amount: int) -> str:
        """Refund an order."""
        return await call_bank(job, "refund", key)

    async def write_note(order: str, text: str) -> str:
        """Write a note about an order."""
        return await call_bank(job, "write_note", key)

    model = Gemini(model="gemini-2.5-flash", base_url=job.url)
    agent = LlmAgent(name="clerk", model=model, tools=[lookup_order, refund, write_note])
    app = App(name="clerk", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
    service: Any = DatabaseSessionService(f"sqlite+aiosqlite:///{Path(job.folder) / 'sessions.db'}")
    runner = Runner(app=app, session_service=service)
    names = {"app_name": "clerk", "user_id": USER, "session_id": job.run}
    session = await service.get_session(**names) or await service.create_session(**names)
    start: dict[str, Any] = {"new_message": types.Content(role="user", parts=[types.Part(text=PROMPT)])}
    if session.events:
        start = {"invocation_id": session.events[-1].invocation_id}
    ready()
    async for _ in runner.run_async(user_id=USER, session_id=job.run, **start):
        pass
    # A run that had ended before the kill yields no events, so read the answer from the session.
    session = await service.get_session(**names)
    texts = [part.text for event in session.events if event.content for part in event.content.parts or ()]
    if texts[-1] is None:
        raise RuntimeError("the invocation ended without an answer")
    return texts[-1]
