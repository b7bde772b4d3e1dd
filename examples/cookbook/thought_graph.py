"""Draw the reasoning of a run as a Mermaid diagram.

Use graphs to explain answers to users or reviewers. By default, agents have the tool `think_aloud` to publish thoughts.
Graphs also contain tool calls.
"""

from pathlib import Path

from rxloop import Agent
from rxloop.testing import ScriptedCall, ScriptedModel, call


def think(thought_id: str, thought_type: str, thought: str, related_to: str | None = None) -> ScriptedCall:
    fields = {"thought_id": thought_id, "thought_type": thought_type, "thought": thought}
    return call("think_aloud", **fields, **({"related_to": related_to} if related_to else {}))


model = ScriptedModel(  # or "openai:gpt-5"
    [
        think("plan", "planning", "Compare the income with the rate"),
        think("income", "observation", "Ann earns 3,000 euros", "plan"),
        think("rate", "observation", "The rate is 400 euros", "plan"),
    ],
    think("doubt", "critique", "Two payments were late", "income"),
    think("answer", "decision", "Approve, with a lower limit", "doubt"),
    "Yes, up to 1,000 euros.",
)
result = Agent(model).run_sync("Does Ann get a loan of 2,000 euros?")

print(result.thoughts.tree())
diagram = Path("loan.mmd")
diagram.write_text(result.thoughts.to_mermaid())  # also to_html(), to_dot() and to_json()
print(diagram.read_text(), end="")

# Output:
# planning plan: Compare the income with the rate
# ├─ observation income: Ann earns 3,000 euros
# │  └─ critique doubt: Two payments were late
# │     └─ decision answer: Approve, with a lower limit
# └─ observation rate: The rate is 400 euros
# flowchart TD
#     n3["planning plan<br/>Compare the income with the rate"]
#     n4["observation income<br/>Ann earns 3,000 euros"]
#     n5["observation rate<br/>The rate is 400 euros"]
#     n7["critique doubt<br/>Two payments were late"]
#     n9["decision answer<br/>Approve, with a lower limit"]
#     n3 --> n4
#     n3 --> n5
#     n4 --> n7
#     n7 --> n9
