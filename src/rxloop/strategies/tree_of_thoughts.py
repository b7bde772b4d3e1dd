"""Tree of thoughts: a search among partial solutions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import at_least, labelled, listed, number, numbered
from rxloop.strategies.shared_stages import (
    BRANCH_CREATION,
    CONTINUATION_DECISION,
    FINAL_RESPONSE,
    PROBLEM_RECEPTION,
    SOLUTION_FORMULATION,
)
from rxloop.strategies.strategy_run import Reply, StrategyRun
from rxloop.support.threads import run_in_thread
from rxloop.thinking.stages import Branching, IterationPoint, Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="tree_of_thoughts",
    title="Tree of Thoughts",
    when="For puzzles and designs with many beginnings of which few succeed, and where a partial answer can be judged.",
    pattern="branching",
    traits={"multiple_paths", "backtracking", "revision", "verification", "dynamic_thought_count"},
    stages=(
        replace(PROBLEM_RECEPTION, next="approach_exploration"),
        Stage(
            name="approach_exploration",
            next="branch_creation",
            description="List several different approaches",
            prompt="List several approaches that differ in kind, each in a sentence.",
        ),
        replace(BRANCH_CREATION, next="branch_development", fields="approaches"),
        Stage(
            name="branch_development",
            next="branch_evaluation",
            fields="approachId",
            description="Take one branch a step further",
            prompt="Take this branch one step further.",
        ),
        Stage(
            name="branch_evaluation",
            next="branch_selection",
            description="Score the branch",
            prompt="Score this branch from 0 to 1: how likely does it lead to a right answer? Give the reason.",
        ),
        Stage(
            name="branch_selection",
            next="continuation_decision",
            fields="evaluationScore",
            description="Keep, drop or prefer branches",
            prompt="Compare the scores: say which branches to keep, and which to drop.",
        ),
        replace(CONTINUATION_DECISION, next=("branch_development", "branch_creation", "solution_formulation")),
        replace(SOLUTION_FORMULATION, next="path_justification"),
        Stage(
            name="path_justification",
            next="final_response",
            description="Say why the chosen path was best",
            prompt="Say why the chosen path is better than those that were dropped.",
        ),
        FINAL_RESPONSE,
    ),
    iteration_point=IterationPoint(stage="continuation_decision", back_to=("branch_development", "branch_creation")),
    branching=Branching(
        kind="tree", stage="branch_creation", fields=("approaches", "approachId", "branchId", "evaluationScore")
    ),
)

Judge = Callable[[Sequence[str]], "float | Awaitable[float]"]
Evaluate = Literal["value", "vote"] | Judge
"""How thoughts are judged: by the model, or by a function of the thoughts from the first one on."""

ROOT = "tot"
_WORDS = {"impossible": 0.0, "unlikely": 0.2, "maybe": 0.5, "likely": 0.7, "sure": 1.0, "certain": 1.0}


def tree_of_thoughts(
    propose: int = 3,
    keep: int = 2,
    depth: int = 3,
    evaluate: Evaluate = "value",
    max_calls: int = 40,
    search: Literal["breadth", "best"] = "breadth",
) -> Strategy:
    """Grow a tree of partial solutions, judge them, and follow the best ones.

    For puzzles and designs in which a partial answer can be judged. A model call for each thought that is taken
    further, one for each that is judged by `value`, one a round for `vote`, none for a function; and one for the
    answer. After Yao et al., "Tree of Thoughts: Deliberate Problem Solving with Large Language Models" (2023).

    Args:
        propose: The next thoughts that are proposed at a time.
        keep: The thoughts that are followed; the rest is dropped.
        depth: The thoughts in a row that make a solution.
        evaluate: `value`: the model scores each thought. `vote`: it chooses among those of a round. Or a function of
            the thoughts from the first one on, sync or async, that gives a score; 0 and False drop the thought. A plain
            function runs in a thread.
        max_calls: The budget: it never makes more model calls than this, the answer included, nor more than
            `Limits.iterations` of the run allows.
        search: `breadth` takes all kept thoughts a step further at once; `best` takes the best one further, wherever in
            the tree it stands, until that is a solution.
    """
    at_least(1, propose=propose, keep=keep, depth=depth, max_calls=max_calls)
    if search not in ("breadth", "best") or not (evaluate in ("value", "vote") or callable(evaluate)):
        raise ConfigurationError(
            f"tree_of_thoughts(evaluate={evaluate!r}, search={search!r}): evaluate is 'value', 'vote' or a function of "
            "the thoughts, and search is 'breadth' or 'best'"
        )

    @strategy(stages=STAGES)
    async def tree_of_thoughts(run: StrategyRun) -> str:
        tree = _Tree(run, propose, keep, depth, evaluate)
        run.stage("problem_reception", "approach_exploration", "branch_creation")
        best = _Node(ROOT)
        frontier = [best]
        growing = min(max_calls, run.ctx.info.limits.iterations or max_calls) - 1
        while True:
            chosen = frontier[: tree.affordable(growing - run.calls)]
            chosen = chosen[:1] if search == "best" else chosen
            rest = frontier[1:] if search == "best" else []
            run.stage("branch_development")
            grown = await tree.grown(chosen)
            run.stage("branch_evaluation")
            judged = await tree.judged(grown)
            run.stage("branch_selection")
            frontier = _best([*rest, *judged], keep)
            best = frontier[0] if frontier else best
            tree.publish_round(judged, frontier)
            run.stage("continuation_decision")
            if not frontier or len(best.path) >= depth or not tree.affordable(growing - run.calls):
                break
        run.stage("solution_formulation", "path_justification")
        run.thought(
            _why(best), type="decision", related_to=best.id if best.path else None, confidence=_confidence(best)
        )
        run.stage("final_response")
        return await run.conclude(_answer(best))

    return tree_of_thoughts


@dataclass(frozen=True, slots=True)
class _Node:
    id: str
    path: tuple[str, ...] = ()
    score: float = 0.0
    reply: Reply | None = None


@dataclass(frozen=True, slots=True)
class _Tree:
    run: StrategyRun
    propose: int
    keep: int
    depth: int
    evaluate: Evaluate

    def affordable(self, calls: int) -> int:
        """Count the thoughts that so many model calls can take a step further and judge."""
        if self.evaluate == "vote":
            return max(calls - 1, 0)
        return max(calls // (1 + self.propose if self.evaluate == "value" else 1), 0)

    async def grown(self, nodes: Sequence[_Node]) -> list[_Node]:
        """Ask for the thoughts that may follow."""
        return [child for children in await self.run.gather(*map(self._children, nodes)) for child in children]

    async def _children(self, node: _Node) -> list[_Node]:
        reply = await self.run.ask(
            f"{_so_far(node)}Propose {self.propose} different next steps, of {self.depth} that lead to the solution; "
            f"this is step {len(node.path) + 1}. Write each on one line of a numbered list, with everything that the "
            "step after it needs to know, and nothing else.",
            branch=node.id,
        )
        return [
            _Node(f"{node.id}/{place}", (*node.path, text), reply=reply)
            for place, text in enumerate(listed(reply.text)[: self.propose], 1)
        ]

    async def judged(self, nodes: Sequence[_Node]) -> list[_Node]:
        """Judge thoughts, and return them with their scores."""
        if not nodes:
            return []
        if self.evaluate == "vote":
            scores = await self._votes(nodes)
        elif self.evaluate == "value":
            scores = await self.run.gather(*map(self._value, nodes))
        else:
            made = await _evaluated(self.evaluate, [node.path for node in nodes])
            scores = await self.run.gather(*map(_awaited, made))
        return [replace(node, score=score) for node, score in zip(nodes, scores, strict=True)]

    async def _value(self, node: _Node) -> float:
        reply = await self.run.ask(
            f"{_so_far(node)}How likely does this lead to a right solution? Consider what is left to do, and whether "
            "it can be done at all. End with one line: `Score: ` and a number from 0 (impossible) to 1 (certain).",
            branch=f"{node.id}/value",
        )
        return _score(reply.text)

    async def _votes(self, nodes: Sequence[_Node]) -> list[float]:
        lines = numbered(" -> ".join(node.path) for node in nodes)
        reply = await self.run.ask(
            f"These are partial solutions:\n{lines}\nWhich {min(self.keep, len(nodes))} are the most promising? "
            "Compare them. End with one line: `Best: ` and their numbers, the best one first.",
            branch=f"{nodes[0].id}/vote",
        )
        places = map(int, re.findall(r"\d{1,4}", labelled(reply.text, "best") or reply.text))
        chosen = list(dict.fromkeys(places))[: self.keep]
        ranks = {place: 1 - rank / self.keep for rank, place in enumerate(chosen)}
        return [ranks.get(place, 0.0) for place in range(1, len(nodes) + 1)]

    def publish_round(self, judged: Sequence[_Node], kept: Sequence[_Node]) -> None:
        """Put the thoughts of a round on the stream."""
        for node in judged:
            parent = node.id.rpartition("/")[0]
            self.run.thought(
                node.path[-1],
                id=node.id,
                related_to=parent if parent != ROOT else None,
                reply=node.reply,
                confidence=_confidence(node),
            )
        names = ", ".join(node.id for node in kept) or "nothing"
        self.run.thought(f"Kept: {names}.", type="decision", related_to=kept[0].id if kept else None)


def _best(nodes: Sequence[_Node], keep: int) -> list[_Node]:
    """Choose the best thoughts; of equals, those that were proposed first."""
    return sorted((node for node in nodes if node.score > 0), key=lambda node: -node.score)[:keep]


async def _evaluated(evaluate: Judge, paths: Sequence[Sequence[str]]) -> list[float | Awaitable[float]]:
    if inspect.iscoroutinefunction(evaluate):
        return [evaluate(path) for path in paths]
    # One after the other, in one thread: on the event loop it would hold up every run, and no limit would end it.
    return await run_in_thread(lambda: [evaluate(path) for path in paths])


async def _awaited(score: float | Awaitable[float]) -> float:
    return float(await score if inspect.isawaitable(score) else score)


def _score(text: str) -> float:
    """Read the score in a judgement; what cannot be read is neither good nor bad."""
    given = number(text, "score")
    if given is None:
        words = [_WORDS[found] for found in re.findall(r"\w+", text.lower()) if found in _WORDS]
        return words[-1] if words else 0.5
    # Some models count to 10 or to 100, whatever the prompt says.
    return max(0.0, given if given <= 1 else given / 10 if given <= 10 else min(given / 100, 1.0))


def _confidence(node: _Node) -> float:
    return min(max(node.score, 0.0), 1.0)


def _so_far(node: _Node) -> str:
    return f"The steps so far:\n{numbered(node.path)}\n\n" if node.path else ""


def _why(best: _Node) -> str:
    if not best.path:
        return "No step was found that leads anywhere."
    return f"Of what was tried, this was judged best ({best.score:.2g}): {' -> '.join(best.path)}"


def _answer(best: _Node) -> str:
    if not best.path:
        return "No step was found that is sure to lead to a solution. Answer as well as you can, and say so."
    return (
        f"These steps were found to be the best:\n{numbered(best.path)}\n\n"
        "Give the answer that they lead to, complete, and without working notes."
    )
