"""Tree of thoughts: a search through partial solutions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.engine import strategy
from rxloop.strategies.replies import find_labelled, find_number, format_list, parse_list
from rxloop.strategies.shared_stages import (
    BRANCH_CREATION,
    CONTINUATION_DECISION,
    FINAL_RESPONSE,
    PROBLEM_RECEPTION,
    SOLUTION_FORMULATION,
    link_stages,
)
from rxloop.strategies.strategy_run import Reply, StrategyRun
from rxloop.support.misuse import check_argument, check_minimum
from rxloop.support.threads import run_in_thread
from rxloop.thinking.stages import Branching, IterationPoint, Stage, StrategyDefinition

STAGES = StrategyDefinition(
    name="tree_of_thoughts",
    title="Tree of Thoughts",
    when="For puzzles and designs with many beginnings of which few succeed, and where a partial answer can be judged.",
    pattern="branching",
    features={"multiple_paths", "backtracking", "revision", "verification", "dynamic_thought_count"},
    stages=link_stages(
        PROBLEM_RECEPTION,
        Stage(
            name="approach_exploration",
            description="List several different approaches",
            prompt="List several approaches that differ in kind, each in a sentence.",
        ),
        replace(BRANCH_CREATION, fields="approaches"),
        Stage(
            name="branch_development",
            fields="approachId",
            description="Take one branch a step further",
            prompt="Take this branch one step further.",
        ),
        Stage(
            name="branch_evaluation",
            description="Score the branch",
            prompt="Score this branch from 0 to 1: how likely does it lead to a right answer? Give the reason.",
        ),
        Stage(
            name="branch_selection",
            fields="evaluationScore",
            description="Keep, drop or prefer branches",
            prompt="Compare the scores: say which branches to keep, and which to drop.",
        ),
        replace(CONTINUATION_DECISION, next=("branch_development", "branch_creation", "solution_formulation")),
        SOLUTION_FORMULATION,
        Stage(
            name="path_justification",
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
"""Evaluation method: model-based, or a custom function for thought paths."""

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
    """Build a tree of partial solutions, evaluate them, and follow the best ones.

    For puzzles and designs whose partial solutions can be evaluated. Makes one model call for each expanded thought,
    one for each thought evaluated by `value`, one per round for `vote`, none for a function, and one for the answer.
    After Yao et al., "Tree of Thoughts: Deliberate Problem Solving with Large Language Models" (2023).

    Args:
        propose: Number of next thoughts proposed at a time.
        keep: Number of thoughts to follow. The others are dropped.
        depth: Number of thoughts in a solution.
        evaluate: `value` lets the model score each thought, `vote` lets it choose among the thoughts of a round. A sync
            or async function receives the path of thoughts and returns a score. 0 and False drop the thought. A sync
            function runs in a thread.
        max_calls: Maximum number of model calls, including the answer. `Limits.iterations` of the run applies as well.
        search: `breadth` expands all kept thoughts at once. `best` expands the best thought of the whole tree, until it
            is a solution.
    """
    check_minimum(1, propose=propose, keep=keep, depth=depth, max_calls=max_calls)
    check_argument("search", search, search in ("breadth", "best"), "'breadth' or 'best'")
    is_valid = evaluate in ("value", "vote") or callable(evaluate)
    check_argument("evaluate", evaluate, is_valid, "'value', 'vote' or a function of the thoughts")

    @strategy(stages=STAGES)
    async def tree_of_thoughts(run: StrategyRun) -> str:
        tree = _Tree(run, propose, keep, depth, evaluate)
        run.stage("problem_reception", "approach_exploration", "branch_creation")
        best = _Node(ROOT)
        frontier = [best]
        call_budget = min(max_calls, run.ctx.info.limits.iterations or max_calls) - 1
        while True:
            chosen = frontier[: tree.count_affordable(call_budget - run.calls)]
            chosen = chosen[:1] if search == "best" else chosen
            others = frontier[1:] if search == "best" else []
            run.stage("branch_development")
            children = await tree.expand(chosen)
            run.stage("branch_evaluation")
            evaluated = await tree.evaluate_nodes(children)
            run.stage("branch_selection")
            frontier = _select_best([*others, *evaluated], keep)
            best = frontier[0] if frontier else best
            tree.publish_round(evaluated, frontier)
            run.stage("continuation_decision")
            if not frontier or len(best.path) >= depth or not tree.count_affordable(call_budget - run.calls):
                break
        run.stage("solution_formulation", "path_justification")
        run.thought(
            _explain_choice(best),
            type="decision",
            related_to=best.id if best.path else None,
            confidence=_confidence(best),
        )
        run.stage("final_response")
        return await run.conclude(_make_prompt(best))

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

    def count_affordable(self, calls: int) -> int:
        """Return the maximum number of thoughts affordable within a model call budget."""
        if self.evaluate == "vote":
            return max(calls - 1, 0)
        return max(calls // (1 + self.propose if self.evaluate == "value" else 1), 0)

    async def expand(self, nodes: Sequence[_Node]) -> list[_Node]:
        """Generate child thoughts for each node."""
        return [child for children in await self.run.gather(*map(self._children, nodes)) for child in children]

    async def _children(self, node: _Node) -> list[_Node]:
        reply = await self.run.ask(
            f"{_describe(node)}Propose {self.propose} different next steps, of {self.depth} that lead to the solution; "
            f"this is step {len(node.path) + 1}. Write each on one line of a numbered list, with everything that the "
            "step after it needs to know, and nothing else.",
            branch=node.id,
        )
        return [
            _Node(f"{node.id}/{index}", (*node.path, text), reply=reply)
            for index, text in enumerate(parse_list(reply.text)[: self.propose], 1)
        ]

    async def evaluate_nodes(self, nodes: Sequence[_Node]) -> list[_Node]:
        """Assign scores to thoughts using the configured evaluation method."""
        if not nodes:
            return []
        if self.evaluate == "vote":
            scores = await self._votes(nodes)
        elif self.evaluate == "value":
            scores = await self.run.gather(*map(self._value, nodes))
        else:
            results = await _run_evaluate(self.evaluate, [node.path for node in nodes])
            scores = await self.run.gather(*map(_to_float, results))
        return [replace(node, score=score) for node, score in zip(nodes, scores, strict=True)]

    async def _value(self, node: _Node) -> float:
        reply = await self.run.ask(
            f"{_describe(node)}How likely does this lead to a right solution? Consider what is left to do, and whether "
            "it can be done at all. End with one line: `Score: ` and a number from 0 (impossible) to 1 (certain).",
            branch=f"{node.id}/value",
        )
        return _score(reply.text)

    async def _votes(self, nodes: Sequence[_Node]) -> list[float]:
        lines = format_list(" -> ".join(node.path) for node in nodes)
        reply = await self.run.ask(
            f"These are partial solutions:\n{lines}\nWhich {min(self.keep, len(nodes))} are the most promising? "
            "Compare them. End with one line: `Best: ` and their numbers, the best one first.",
            branch=f"{nodes[0].id}/vote",
        )
        numbers = map(int, re.findall(r"\d{1,4}", find_labelled(reply.text, "best") or reply.text))
        chosen = list(dict.fromkeys(numbers))[: self.keep]
        ranks = {index: 1 - rank / self.keep for rank, index in enumerate(chosen)}
        return [ranks.get(index, 0.0) for index in range(1, len(nodes) + 1)]

    def publish_round(self, evaluated: Sequence[_Node], kept: Sequence[_Node]) -> None:
        """Publish all evaluated thoughts and the pruning decision."""
        for node in evaluated:
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


def _select_best(nodes: Sequence[_Node], keep: int) -> list[_Node]:
    """Return the best thoughts. Equal thoughts keep their order."""
    return sorted((node for node in nodes if node.score > 0), key=lambda node: -node.score)[:keep]


async def _run_evaluate(evaluate: Judge, paths: Sequence[Sequence[str]]) -> list[float | Awaitable[float]]:
    if inspect.iscoroutinefunction(evaluate):
        return [evaluate(path) for path in paths]
    # Sequentially in one thread, because on the event loop a slow function would block all runs.
    return await run_in_thread(lambda: [evaluate(path) for path in paths])


async def _to_float(score: float | Awaitable[float]) -> float:
    return float(await score if inspect.isawaitable(score) else score)


def _score(text: str) -> float:
    """Extract a score from a judgement, defaulting to 0.5."""
    score = find_number(text, "score")
    if score is None:
        words = [_WORDS[word] for word in re.findall(r"\w+", text.lower()) if word in _WORDS]
        return words[-1] if words else 0.5
    # Some models use a scale up to 10 or 100 despite the prompt.
    return max(0.0, score if score <= 1 else score / 10 if score <= 10 else min(score / 100, 1.0))


def _confidence(node: _Node) -> float:
    return min(max(node.score, 0.0), 1.0)


def _describe(node: _Node) -> str:
    return f"The steps so far:\n{format_list(node.path)}\n\n" if node.path else ""


def _explain_choice(best: _Node) -> str:
    if not best.path:
        return "No step was found that leads anywhere."
    return f"Of what was tried, this was judged best ({best.score:.2g}): {' -> '.join(best.path)}"


def _make_prompt(best: _Node) -> str:
    if not best.path:
        return "No step was found that is sure to lead to a solution. Answer as well as you can, and say so."
    return (
        f"These steps were found to be the best:\n{format_list(best.path)}\n\n"
        "Give the answer that they lead to, complete, and without working notes."
    )
