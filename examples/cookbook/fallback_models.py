"""Retry failed requests, and switch models after failures and delays.

Use `Retry` for rate limits, `fallback` for outages of a vendor, and `hedge` for slow answers. Combine them as needed.
"""

import asyncio

import httpx

from rxloop import Agent, LLMFailedEvent, Provider, Retry, fallback, hedge, op, openai_chat
from rxloop.errors import ServerError
from rxloop.testing import OfflineModel, ScriptedModel, frames

offline = OfflineModel()
busy = iter([httpx.Response(429, headers={"retry-after": "0.01"})])


def handle(request: httpx.Request) -> httpx.Response:
    return next(busy, None) or offline.handle(request)


http = httpx.AsyncClient(transport=httpx.MockTransport(handle))  # for real requests, omit this client
retried = openai_chat("gpt-5", api_key="...", http_client=http, retry=Retry(attempts=5))
broken = ScriptedModel(ServerError("the service is down"))
silent = ScriptedModel(frames("---"))  # sends no answer
backup = ScriptedModel("4, says the backup.", "4, says the backup.")


async def main() -> None:
    models: dict[str, Provider] = {
        "retry": retried,
        "fallback": fallback(broken, backup),  # or fallback("anthropic", "openai:gpt-5")
        "hedge": hedge(silent, backup, after=0.01),
    }
    for name, model in models.items():
        async with Agent(model) as agent, agent.run("What is 2 + 2?") as run:
            async for event in run.pipe(op.of_type(LLMFailedEvent)):
                print(f"{name}: {event.error.code}, {event.tries} failed")
            print(f"{name}: {(await run).output}")
    await http.aclose()


asyncio.run(main())

# Output:
# retry: rate_limited, 1 failed
# retry: 2 + 2 is 4.
# fallback: server, 1 failed
# fallback: 4, says the backup.
# hedge: 4, says the backup.
