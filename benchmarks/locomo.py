"""Share of the evidence that memory recalls for the questions of LoCoMo, without a model.

    python benchmarks/locomo.py FOLDER

FOLDER contains the ten conversations of LoCoMo (Maharana et al., "Evaluating Very Long-Term Conversational Memory of
LLM Agents", 2024; github.com/snap-research/locomo, unpacked `data/locomo10.zip`). The data is not part of rxloop.

Each message is a note. For each question of the categories 1 to 4, the notes recalled within 500, 1,000 and 2,000
tokens are compared with the messages that contain the answer. Tokens are a quarter of the characters, including the
name of the speaker and the caption of a picture. The weights of the search were chosen on the conversations 26, 30, 41,
42 and 43.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any

from rxloop import MemoryEventLog
from rxloop.memory import ImportedMessage, Memory, Note

BUDGETS = (500, 1_000, 2_000)
CATEGORIES = {1: "several messages", 2: "time", 3: "world knowledge", 4: "one message"}
TUNED = ("26", "30", "41", "42", "43")


async def import_sessions(memory: Memory, owner: str, data: dict[str, Any]) -> dict[str, str]:
    """Import the conversation of a file, and return the note ids by message id."""
    ids: dict[str, str] = {}
    number = 1
    while f"session_{number}_date_time" in data:
        turns = data.get(f"session_{number}") or []
        time = datetime.strptime(data[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y").astimezone()
        messages = [
            ImportedMessage(
                turn["text"] + (f" [{turn['blip_caption']}]" if "blip_caption" in turn else ""), turn["speaker"], time
            )
            for turn in turns
        ]
        if messages:
            notes = await memory.import_conversation(owner, messages, context_id=f"{owner}-{number}")
            ids.update(zip((turn["dia_id"] for turn in turns), (note.note_id for note in notes), strict=True))
        number += 1
    return ids


def measure_recall(notes: list[Note], evidence: set[str], budget: int) -> float:
    """Return the share of the evidence in the notes that fit into the budget."""
    used, found = 0.0, 0
    for note in notes:
        size = len(f"{note.author}: {note.text}") / 4
        if used + size <= budget:
            used += size
            found += note.note_id in evidence
    return found / len(evidence)


async def main(paths: list[Path]) -> None:
    """Measure all conversations and print a table."""
    recalls: defaultdict[str, list[list[float]]] = defaultdict(list)
    whole: list[float] = []
    for path in paths:
        data = json.loads(path.read_bytes())
        memory = Memory(MemoryEventLog())
        ids = await import_sessions(memory, path.stem, data)
        whole.append(sum(len(f"{note.author}: {note.text}") / 4 for note in await memory.notes(path.stem)))
        for question in data["qa"]:
            evidence = {ids[each] for each in question.get("evidence") or () if each in ids}
            if question["category"] not in CATEGORIES or not evidence:
                continue
            notes = await memory.search(path.stem, question["question"], limit=1_000)
            row = [100 * measure_recall(notes, evidence, budget) for budget in BUDGETS]
            kind = CATEGORIES[question["category"]]
            for group in (kind, "tuned" if path.stem in TUNED else "not tuned", "all"):
                recalls[group].append(row)
    print(
        "| questions | number | " + " | ".join(f"{budget:,} tokens" for budget in BUDGETS) + " |\n|---|---|---|---|---|"
    )
    for group in (*CATEGORIES.values(), "tuned", "not tuned", "all"):
        values = " | ".join(f"{mean(column):.1f}" for column in zip(*recalls[group], strict=True))
        print(f"| {group} | {len(recalls[group])} | {values} |")
    print(f"The whole conversations have {mean(whole):,.0f} tokens on average (100 %).")


if __name__ == "__main__":
    asyncio.run(main(sorted(Path(sys.argv[1]).glob("**/*.json"))))
