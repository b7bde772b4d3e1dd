"""Recall of compressed transcripts with and without values that similar transcripts needed.

python benchmarks/predicted_context.py --bench compression_bench.py --corpus transcripts

For each transcript, the other transcripts of its family are the earlier runs, without copies of the same run. Arguments
of their tool calls are the values that similar runs needed. The compressor reserves a part of its budget for lines of
the removed messages with such values. Three limits are printed too: the recall if all needed values were kept, if all
values that occur in the earlier runs were kept, and if all values that earlier tool calls needed were kept.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from compression import Chat, Compress, sliding_window

SHARED = Path(__file__).parents[2] / "shared"
_COPY = 0.5
"""Fraction of equal messages from which two transcripts are copies of the same run."""
_WIDTH = 60
"""Number of characters around a value that are kept with it."""


def load_bench(path: Path) -> Any:
    """Import the benchmark tool from its file."""
    spec = importlib.util.spec_from_file_location("compression_bench", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Learned:
    """What the earlier runs of a transcript contain and needed."""

    def __init__(self, bench: Any, rows: Sequence[dict[str, Any]], row: dict[str, Any]) -> None:
        texts = self._list_texts(bench, row)
        self.text = ""
        self.needed: Counter[str] = Counter()
        """Number of earlier runs whose tool calls needed a value."""
        for other in rows:
            others = self._list_texts(bench, other)
            is_copy = len(texts & others) >= _COPY * min(len(texts), len(others))
            if other is row or is_copy or other["family"] != row["family"]:
                continue
            self.text += "\x1e".join(bench.plain(message) for message in other["messages"])
            self.needed.update({fact for _, facts in other["steps"] for fact, _, _ in facts})

    def _list_texts(self, bench: Any, row: dict[str, Any]) -> set[str]:
        return {bench.plain(message) for message in row["messages"][row["head"] :]}


def make_predicting(bench: Any, learned: Sequence[Learned], share: float) -> Callable[[], Compress]:
    """Return a factory of compressors for the transcripts, in their order.

    Args:
        bench: Benchmark tool.
        learned: Earlier runs of each transcript.
        share: Part of the budget reserved for values that similar runs needed.
    """
    remaining: Iterator[Learned] = iter(learned)

    def make() -> Compress:
        earlier, window = next(remaining), sliding_window()

        def compress(history: list[Chat], budget: int, count: Callable[[list[Chat]], int]) -> list[Chat]:
            if count(history) <= budget:
                return window(history, budget, count)
            head = bench.head_length(history)
            room = int(share * (budget - count(history[:head])))
            kept = window(history, budget - room, count)
            text = "\x1e".join(map(bench.plain, kept))
            lines: list[str] = []
            for fact, _ in earlier.needed.most_common():
                if bench.find(text, fact, 1):
                    continue
                line = find_line(bench, history, fact)
                if line is not None:
                    block = [
                        {"role": "user", "content": "\n".join(["[Values that similar runs needed]", *lines, line])}
                    ]
                    if count(block) > room:
                        break
                    lines.append(line)
            if not lines:
                return kept
            block = [{"role": "user", "content": "\n".join(["[Values that similar runs needed]", *lines])}]
            return [*kept[:head], *block, *kept[head:]]

        return compress

    return make


def make_block(*lines: str) -> Chat:
    """Return the message with the values."""
    return {"role": "user", "content": "\n".join(["[Values that similar runs needed]", *lines])}


def find_line(bench: Any, history: Sequence[Chat], fact: str) -> str | None:
    """Return the last occurrence of a value with the text around it, or None."""
    for message in reversed(history):
        text = bench.plain(message)
        for position in bench.find(text, fact, 1):
            return " ".join(text[max(position - _WIDTH, 0) : position + len(fact) + _WIDTH].split())
    return None


def count_limits(bench: Any, rows: Sequence[dict[str, Any]], learned: Sequence[Learned], budget: float) -> list[float]:
    """Return the recall if no value was lost, none that occurs in earlier runs, and none that they needed."""
    total = missing = occurring = needed = 0
    for row, earlier in zip(rows, learned, strict=True):
        limit, window = row["head_tokens"] + int(budget * row["body_tokens"]), sliding_window()
        for index, facts in row["steps"]:
            history = row["messages"][:index]
            kept = window(list(history), limit, bench.count_tokens)
            if bench.count_tokens(history) <= limit:
                continue
            text = "\x1e".join(map(bench.plain, kept))
            lost = [fact for fact, _, _ in facts if not bench.find(text, fact, 1)]
            total += len(facts)
            missing += len(lost)
            occurring += sum(bool(bench.find(earlier.text, fact, 1)) for fact in lost)
            needed += sum(fact in earlier.needed for fact in lost)
    return [1.0, 1 - (missing - occurring) / total, 1 - (missing - needed) / total]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, default=SHARED / "tools" / "compression_bench.py")
    parser.add_argument("--corpus", type=Path, default=SHARED / "corpus" / "transcripts")
    arguments = parser.parse_args()
    bench = load_bench(arguments.bench)
    rows = bench.prepare(bench.load(arguments.corpus, None))
    learned = [Learned(bench, rows, row) for row in rows]
    print("budget  reserved  recall   far  linked  valid  cost")
    for budget in (0.25, 0.1, 0.05):
        for share in (0.0, 0.02, 0.05, 0.1):
            make = make_predicting(bench, learned, share) if share else sliding_window
            scores = bench.evaluate(make, rows, budget, 0.2)
            cells = (f"{100 * scores[key]:5.1f}" for key in ("recall", "far", "linked", "valid", "cost"))
            print(f"{budget:6.0%} {share:9.0%} ", *cells, sep="  ", flush=True)
        names = ("all values", "values in earlier runs", "values needed by earlier runs")
        limits = zip(names, count_limits(bench, rows, learned, budget), strict=True)
        print("        limits:", ", ".join(f"{name} {100 * limit:.1f}" for name, limit in limits), flush=True)


if __name__ == "__main__":
    main()
