"""Extract typed data from a text.

Use `output_type` to turn emails, invoices or tickets into objects. The model receives the errors of an invalid answer
and can correct it. In a notebook or an async function, write `await agent.run(...)` instead of `agent.run_sync(...)`.
"""

from datetime import date
from decimal import Decimal

from pydantic import BaseModel, Field

from rxloop import Agent
from rxloop.testing import ScriptedModel


class Invoice(BaseModel):
    number: str = Field(pattern=r"^INV-\d{4}$")
    due: date
    total: Decimal = Field(gt=0)


model = ScriptedModel(  # or "openai:gpt-5"
    '{"number": "2041", "due": "2027-01-15", "total": "1290.50"}',
    '{"number": "INV-2041", "due": "2027-01-15", "total": "1290.50"}',
)
agent = Agent(model, output_type=Invoice, instructions="Extract the invoice from the email.")
result = agent.run_sync("Invoice 2041 over 1,290.50 euros is payable until 15 January 2027. Best regards, Ann")

print(result.output)
print(f"{result.output.total / 12:.2f} euros per month")
print("correction:", result.messages[2].text)

# Output:
# number='INV-2041' due=datetime.date(2027, 1, 15) total=Decimal('1290.50')
# 107.54 euros per month
# correction: Your answer does not fit what was asked for: number: String should match pattern '^INV-\d{4}$'
# Answer again, with the corrected JSON alone.
