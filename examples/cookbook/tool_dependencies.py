"""Give tools a database connection and the current user.

Use `deps` for all objects that tools need but the model must not choose. Type checkers report runs without them.
"""

import sqlite3
from dataclasses import dataclass

from rxloop import Agent, RunContext, ToolError, tool
from rxloop.testing import ScriptedModel, call


@dataclass
class Shop:
    database: sqlite3.Connection
    customer: str


@tool
async def track_order(ctx: RunContext[Shop], order: str) -> str:
    """Return the delivery status of an order.

    Args:
        order: An order number, such as "A-7".
    """
    query = "SELECT status FROM orders WHERE number = ? AND customer = ?"
    row = ctx.deps.database.execute(query, (order, ctx.deps.customer)).fetchone()
    if row is None:
        raise ToolError(f"{ctx.deps.customer} has no order {order}.")  # The model reads this message.
    return str(row[0])


database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE orders (number, customer, status)")
database.execute("INSERT INTO orders VALUES ('A-7', 'Ann', 'arrives on Friday'), ('B-3', 'Bob', 'delivered')")

model = ScriptedModel([call("track_order", order="A-7"), call("track_order", order="B-3")], "A-7 arrives on Friday.")
agent = Agent(  # a real model: Agent("anthropic:claude-sonnet-4-5", ...)
    model, tools=[track_order], deps_type=Shop, instructions=lambda ctx: f"You help {ctx.deps.customer}."
)
result = agent.run_sync("Where are A-7 and B-3?", deps=Shop(database, customer="Ann"))

for message in result.messages:
    print(f"{message.role:>9}: {message.text or [call.arguments for call in message.tool_calls]}")
print("system prompt:", model.requests[0].system[0].text)
database.close()

# Output:
#      user: Where are A-7 and B-3?
# assistant: [{'order': 'A-7'}, {'order': 'B-3'}]
#      tool: arrives on Friday
#      tool: Ann has no order B-3.
# assistant: A-7 arrives on Friday.
# system prompt: You help Ann.
