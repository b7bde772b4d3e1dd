"""What a model reads about sequential thinking: when to think, to revise and to branch, and what each field means."""

from __future__ import annotations

from typing import Any

DESCRIPTION = """\
Think a problem through in numbered steps, one call a thought, before you act or answer. Use it for problems of \
several steps, for plans and designs, and wherever the first idea may turn out wrong. Do not use it for what you \
know at once.

How to think with it:
- Begin with a guess of totalThoughts, and raise or lower it as you see more. One thought a call, in plain sentences.
- Let each thought build on those before it: narrow the question, doubt an assumption, test an idea, state a \
hypothesis, check it against the facts.
- REVISE as soon as you see that an earlier thought was wrong: do not go on as if it stood. Set isRevision to true and \
revisesThought to its number. Example: thought 2 took the prices to be without tax; in thought 4 you read that they \
include it:
  {"thought": "Thought 2 was wrong: the prices include tax, so the total is 240, not 288.", "thoughtNumber": 4, \
"totalThoughts": 6, "nextThoughtNeeded": true, "isRevision": true, "revisesThought": 2}
- BRANCH when there are two ways worth trying: follow one, then go back and follow the other, and compare them. Set \
branchFromThought to the number of the thought where the ways part, and give the branch a short branchId; repeat the \
branchId in each thought of it. Example: thought 3 chose a queue, and a second way from thought 2 is to be tried:
  {"thought": "The other way: write to both tables at once and compare them each night.", "thoughtNumber": 3, \
"totalThoughts": 6, "nextThoughtNeeded": true, "branchFromThought": 2, "branchId": "dual-write"}
- When you reach the last thought and see that it is not enough, set needsMoreThoughts to true and go on.
- Set nextThoughtNeeded to false only when the answer is found and checked; then give the answer itself."""

_BOOLEAN = {"type": "boolean"}
_NUMBER = {"type": "integer", "minimum": 1}

PROPERTIES: dict[str, dict[str, Any]] = {
    "thought": {"type": "string", "description": "This thought, in plain sentences."},
    "nextThoughtNeeded": {**_BOOLEAN, "description": "Whether another thought is needed."},
    "thoughtNumber": {**_NUMBER, "description": "The number of this thought: 1, 2, 3 and so on."},
    "totalThoughts": {**_NUMBER, "description": "How many thoughts you expect to need; change it as you see more."},
    "isRevision": {**_BOOLEAN, "description": "Whether this thought replaces an earlier one."},
    "revisesThought": {**_NUMBER, "description": "With isRevision: the number of the thought that it replaces."},
    "branchFromThought": {**_NUMBER, "description": "The number of the thought that this branch leaves from."},
    "branchId": {"type": "string", "description": "A short name for the branch, the same in each thought of it."},
    "needsMoreThoughts": {**_BOOLEAN, "description": "At the end: more thoughts are needed than you expected."},
}
"""The fields of a thought, as JSON Schema."""

SESSION_PROPERTIES: dict[str, dict[str, Any]] = {
    "sessionId": {
        "type": "string",
        "description": "The session to go on in: the sessionId of an earlier answer. Leave it out to begin a new one.",
    },
    "clearSession": {**_BOOLEAN, "description": "Forget the thoughts so far: this one is the first of a new session."},
}
"""The fields that say which session a thought belongs to."""

REQUIRED = ["thought", "nextThoughtNeeded", "thoughtNumber", "totalThoughts"]


def parameters(*, bound: bool) -> dict[str, Any]:
    """Make the JSON Schema of the tool's arguments.

    Args:
        bound: The tool has a session of its own, and the model need not know of ids.
    """
    own = {name: field for name, field in SESSION_PROPERTIES.items() if not (bound and name == "sessionId")}
    return {"type": "object", "properties": {**PROPERTIES, **own}, "required": REQUIRED}
