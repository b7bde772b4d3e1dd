"""Ask several models in parallel, and use the answer of the majority.

Use votes for important decisions. To sample one model several times, use the strategy `self_consistency`.
"""

import asyncio
from collections import Counter
from typing import Literal

from pydantic import BaseModel

from rxloop import Agent
from rxloop.testing import ScriptedModel


class Verdict(BaseModel):
    decision: Literal["approve", "reject"]
    reason: str


models = {  # or {"gpt": "openai:gpt-5", "claude": "anthropic:claude-sonnet-4-5", "gemini": "google"}
    "gpt": ScriptedModel('{"decision": "approve", "reason": "The income is sufficient."}'),
    "claude": ScriptedModel('{"decision": "reject", "reason": "Two payments were late."}'),
    "gemini": ScriptedModel('{"decision": "approve", "reason": "The loan is small."}'),
}


async def main() -> None:
    runs = [Agent(model, output_type=Verdict).run("Does Ann get a loan of 2,000 euros?") for model in models.values()]
    verdicts = [result.output for result in await asyncio.gather(*runs)]
    for name, verdict in zip(models, verdicts, strict=True):
        print(f"{name:>7}: {verdict.decision}. {verdict.reason}")
    [(decision, votes)] = Counter(verdict.decision for verdict in verdicts).most_common(1)
    print(f"{votes} of {len(verdicts)} models {decision} the loan.")


asyncio.run(main())

# Output:
#     gpt: approve. The income is sufficient.
#  claude: reject. Two payments were late.
#  gemini: approve. The loan is small.
# 2 of 3 models approve the loan.
