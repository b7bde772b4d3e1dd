"""Measure which prompt is better.

Use experiments before changing prompts, models or tools. Reports contain confidence intervals, and comparisons list
cases with worse scores.
"""

from rxloop import Agent, ModelRequest
from rxloop.evals import Case, compare, experiment, score
from rxloop.testing import ScriptedModel

CASES = [
    Case("My parcel is late.", expected="delivery", id="late"),
    Case("I was charged twice.", expected="billing", id="charged"),
    Case("Great, it broke on the first day.", expected="complaint", id="irony"),
]


def classify(request: ModelRequest) -> str:  # stands for a real model
    topics = {"late": "delivery", "charged": "billing"}
    if "irony" in request.system[0].text:
        topics["Great"] = "complaint"
    return next((topic for word, topic in topics.items() if word in request.messages[0].text), "praise")


model = ScriptedModel(*[classify] * 6)  # or "openai:gpt-5-mini"
prompts = {"short": "Name the topic.", "long": "Name the topic. Watch out for irony."}
agents = {name: Agent(model, instructions=prompt, thoughts=False) for name, prompt in prompts.items()}
report = experiment(CASES, agents, [score.exact(), score.steps()], name="topics").run_sync()

print(report)
print()
print(compare(report.of("short"), report.of("long")))

# Output:
# topics: 6 of 6 trials, 3 cases
#                      short       long
# exact         0.667 [0, 1]   1 [1, 1]
# steps             1 [1, 1]   1 [1, 1]
# no answer                0          0
# tokens used              0          0
#
#                        before   after        difference
# exact (short > long)    0.667       1   +0.333 [+0, +1]   unclear
# steps (short > long)        1       1       +0 [+0, +0]      same
