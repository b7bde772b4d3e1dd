"""Refuse or change tool calls that break a rule.

Use a guard to enforce permissions and limits. Guards check calls before tools run, and the model receives the reason.
"""

from collections.abc import AsyncIterator

from rxloop import Agent, RunContext, Signal, ToolRequest, op, tool
from rxloop.testing import ScriptedModel, call


@tool
async def query(sql: str, limit: int = 1_000) -> str:
    """Query the sales database."""
    return f"executed with limit {limit}"


@op.on(ToolRequest)
async def read_only(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
    sql = str(request.call.arguments.get("sql", ""))
    if not sql.upper().startswith("SELECT"):
        yield request.refuse("Only SELECT is allowed.")
    elif ctx.metadata.get("role") != "analyst":
        yield request.replace(limit=100)
    else:
        yield request


model = ScriptedModel(  # or "openai:gpt-5"
    [call("query", sql="DELETE FROM sales"), call("query", sql="SELECT * FROM sales")], "I read 100 rows."
)
agent = Agent(model, tools=[query], loop=op.standard(before_tools=[read_only]))
result = agent.run_sync("Clean up the sales.", metadata={"role": "guest"})

for message in result.messages[2:]:
    print(f"{message.role}: {message.text}")

# Output:
# tool: Only SELECT is allowed.
# tool: executed with limit 100
#
# [Note: the arguments of this call were changed; it was executed with limit: 100]
# assistant: I read 100 rows.
