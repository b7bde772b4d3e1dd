"""Ask for approval in the terminal before calling a tool.

Use `approve` for calls that cost money or cannot be undone. The call waits for an answer, while other calls continue.
"""

from rxloop import Agent, PendingInput, tool
from rxloop.testing import ScriptedModel, call


@tool(approve="Refund {amount} euros for order {order}?")
async def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"Refunded {amount:g} euros."


answers = iter(["y", "n"])


def ask(question: PendingInput) -> bool:
    answer = next(answers)  # or input(f"{question.prompt} [y/n] ")
    print(f"{question.prompt} [y/n] {answer}")
    return answer == "y"


calls = [call("refund", order="A-7", amount=20), call("refund", order="B-3", amount=900)]
model = ScriptedModel(calls, "A-7 is refunded. B-3 was not approved.")  # or "openai:gpt-5"
result = Agent(model, tools=[refund]).run_sync("Refund A-7 and B-3.", on_input=ask)

for message in result.messages[2:]:
    print(f"{message.role}: {message.text}")

# Output:
# Refund 20 euros for order A-7? [y/n] y
# Refund 900 euros for order B-3? [y/n] n
# tool: Refunded 20 euros.
# tool: The call of refund was not approved.
# assistant: A-7 is refunded. B-3 was not approved.
