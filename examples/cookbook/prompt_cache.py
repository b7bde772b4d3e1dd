"""Arrange prompts for the cache of the vendor.

Use workspaces for long documents and changing notes. Requests start with stable layers and end with changing layers, so
vendors can cache the beginning.
"""

from rxloop import Agent, ModelSettings, PromptCache, Scratchpad, Usage, op, tool
from rxloop.context import TextWorkspace
from rxloop.providers import find_price
from rxloop.testing import ScriptedModel, call, turn

notes = Scratchpad()


@tool
def note(name: str, text: str) -> str:
    """Write a note."""
    notes[name] = text
    return "noted"


model = ScriptedModel(  # or "anthropic:claude-sonnet-4-5"
    turn(calls=[call("note", name="A-7", text="too late")], usage=Usage(input_tokens=9_000, cache_write_tokens=8_900)),
    turn("Refund A-7.", usage=Usage(input_tokens=9_100, cached_tokens=8_900, output_tokens=20)),
)
agent = Agent(
    model,
    instructions="You decide on refunds.",
    tools=[note],
    thoughts=False,
    loop=op.standard(
        before_model=[op.workspace(TextWorkspace("§ 1 Late orders ...", title="Rules")), op.workspace(notes)]
    ),
    settings=ModelSettings(prompt_cache=PromptCache(ttl="1h")),  # Only needed to change the default of Anthropic.
)
result = agent.run_sync("A-7 arrived late.")

request = model.requests[1]
for layer, messages in {"system": request.system, "history": request.messages, "tail": request.tail}.items():
    for message in messages:
        print(f"{layer:>7} {message.role:>9}: {(message.text or message.tool_calls[0].name).splitlines()[-1]}")
if price := find_price("anthropic:claude-sonnet-4-5"):
    uncached = Usage(input_tokens=result.usage.input_tokens, output_tokens=result.usage.output_tokens)
    print(f"${price.of(result.usage):.4f} with the cache, ${price.of(uncached):.4f} without")

# Output:
#  system    system: You decide on refunds.
#  system    system: § 1 Late orders ...
# history      user: A-7 arrived late.
# history assistant: note
# history      tool: noted
#    tail      user: A-7: too late
# $0.0372 with the cache, $0.0546 without
