"""ReWOO plans of tool calls."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from rxloop.errors import PlanRefused

Arguments = dict[str, Any] | str
"""The arguments of a call by name, or the one text that stood between the brackets."""

_LABEL = re.compile(r"#E([0-9]{1,9})")

_STEP = re.compile(r"#E([0-9]{1,9})\**\s*=\s*([\w.-]+)\s*\[")

_WHY = re.compile(r"\bplan\b[ 0-9]*:", re.IGNORECASE)

_FENCE = re.compile(r"```(?:json)?(.*?)```", re.DOTALL)

_FORM = 'write each on a line as `Plan: why. #E1 = tool_name[{"argument": "value"}]`'


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One call of a plan."""

    id: str
    """Its label without the number sign, such as `E1`."""
    tool: str
    arguments: Arguments
    why: str = ""
    """What the plan says about it."""

    @property
    def needs(self) -> frozenset[str]:
        """The steps whose results its arguments refer to."""
        return frozenset(_id(number) for text in _texts(self.arguments) for number in _LABEL.findall(text))


@dataclass(frozen=True)
class Plan:
    """Steps in the order of their labels, none of which waits for itself.

    Raises:
        PlanRefused: A label stands twice, refers to nothing, or the steps wait for each other.
    """

    steps: tuple[PlanStep, ...]

    def __post_init__(self) -> None:
        steps = tuple(sorted(self.steps, key=lambda step: _number(step.id)))
        object.__setattr__(self, "steps", steps)
        if not steps:
            raise PlanRefused(f"the plan has no step; {_FORM}")
        ids = [step.id for step in steps]
        if twice := [each for each, count in Counter(ids).items() if count > 1]:
            raise PlanRefused(f"the plan has two steps #{twice[0]}; give each a number of its own")
        for step in steps:
            if unknown := step.needs - set(ids):
                raise PlanRefused(f"step #{step.id} refers to {_listed(unknown)}; the plan has only {_listed(ids)}")
        if cycle := self._cycle():
            raise PlanRefused(
                f"the steps #{' -> #'.join(cycle)} wait for each other; "
                "a step may refer only to results that do not depend on its own"
            )

    def __iter__(self) -> Iterator[PlanStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, id: str) -> PlanStep:
        found = self._by_id.get(id.removeprefix("#"))
        if found is None:
            raise KeyError(id)
        return found

    def ready(self, done: Collection[str], running: Collection[str] = ()) -> tuple[PlanStep, ...]:
        """Return the steps that can run now: everything they need is done, and they are neither done nor running."""
        known = set(done)
        waiting = [step for step in self.steps if step.id not in known and step.id not in running]
        return tuple(step for step in waiting if self.dependencies[step.id] <= known)

    def arguments(self, id: str, evidence: Mapping[str, Any]) -> Arguments | Any:
        """Replace the labels in the arguments of a step by the results that they name.

        A text that is a label and nothing else becomes the result itself, whatever its type. Within a longer text, the
        result stands as text, or as its JSON. A label inside a result is left as it is.

        Args:
            id: The step.
            evidence: The results by the ids of their steps.

        Raises:
            PlanRefused: A result that it needs is not there.
        """
        step = self[id]
        if missing := step.needs - set(evidence):
            raise PlanRefused(f"step #{step.id} needs the result of {_listed(missing)}, which is not there")
        return _substituted(step.arguments, evidence)

    def with_evidence(self, evidence: Mapping[str, Any]) -> str:
        """Write the plan for the model that solves the problem: each step with its result, in order."""
        lines: list[str] = []
        for step in self.steps:
            given = step.arguments if isinstance(step.arguments, str) else _json(step.arguments)
            lines += [f"Plan: {step.why}"] if step.why else []
            lines.append(f"#{step.id} = {step.tool}[{given}]")
            lines.append(f"Evidence: {_as_text(evidence[step.id])}" if step.id in evidence else "Evidence: none")
        return "\n".join(lines)

    @cached_property
    def dependencies(self) -> Mapping[str, frozenset[str]]:
        """The steps that each step waits for."""
        return {step.id: step.needs for step in self.steps}

    @cached_property
    def _by_id(self) -> dict[str, PlanStep]:
        return {step.id: step for step in self.steps}

    def _cycle(self) -> list[str]:
        """Find steps that wait for each other: the first is repeated at the end; empty if there are none."""
        done = set[str]()
        while ready := self.ready(done):
            done.update(step.id for step in ready)
        left = [step.id for step in self.steps if step.id not in done]
        # Each step that is left waits for another one that is left: following them comes back sooner or later.
        way = left[:1]
        while way:
            following = min(self.dependencies[way[-1]] - done, key=_number)
            if following in way:
                return [*way[way.index(following) :], following]
            way.append(following)
        return way


def parse_plan(text: str, tools: Collection[str] | None = None) -> Plan:
    """Read the plan of a model.

    The steps stand in the text as `#E1 = tool[input]`, the published form, or `#E1 = tool[{"argument": "value"}]`; what
    follows `Plan:` before each is its reason, and everything else is passed over. Or the whole text is a JSON list of
    steps, perhaps in a code fence: `[{"id": "E1", "tool": "search", "arguments": {...}, "plan": "why"}]`.

    Args:
        text: What the model wrote.
        tools: The tools that there are; without it, any name will do.

    Raises:
        PlanRefused: It has no steps, or they cannot be carried out; the message is written for the model.
    """
    try:
        listed = _json_steps(text)
        plan = Plan(tuple(_of_objects(listed) if listed is not None else _of_text(text)))
    except RecursionError:
        raise PlanRefused(f"the arguments of the plan are nested too deeply; {_FORM}") from None
    for step in plan:
        if tools is not None and step.tool not in tools:
            raise PlanRefused(f"step #{step.id} calls {step.tool!r}; there are only the tools {', '.join(tools)}")
    return plan


def _of_text(text: str) -> Iterator[PlanStep]:
    at = 0
    while match := _STEP.search(text, at):
        arguments, end = _input(text, match)
        before = text[at : match.start()]
        why = _WHY.search(before)
        yield PlanStep(_id(match[1]), match[2], arguments, _one_line(before[why.end() :]) if why else "")
        at = end


def _input(text: str, match: re.Match[str]) -> tuple[Arguments, int]:
    """Read the text between the brackets of a step; return it with the place where it ends."""
    start = match.end()
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    if text.startswith("{", begin):
        return _json_input(text, begin, match[1])
    depth = 1
    for place in range(start, len(text)):
        depth += {"[": 1, "]": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place].strip(), place + 1
    raise PlanRefused(f"the input of step #E{match[1]} has no closing bracket; {_FORM}")


def _json_input(text: str, begin: int, number: str) -> tuple[Arguments, int]:
    try:
        arguments, end = json.JSONDecoder(strict=False).raw_decode(text, begin)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + 20].split("\n")[0]
        raise PlanRefused(f"the arguments of step #E{number} are not JSON: {error.msg} at {near!r}") from None
    rest = text[end:].lstrip()
    if not rest.startswith("]"):
        raise PlanRefused(f"the arguments of step #E{number} are not followed by a closing bracket; {_FORM}")
    return arguments, len(text) - len(rest) + 1


def _json_steps(text: str) -> list[Any] | None:
    """Read the steps, if the text is JSON."""
    fence = _FENCE.search(text)
    for candidate in (text, fence[1] if fence else ""):
        if not candidate.strip().startswith(("[", "{")):
            continue
        try:
            data = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(data, dict):
            data = cast("dict[str, Any]", data).get("steps")
        if isinstance(data, list):
            return cast("list[Any]", data)
    return None


def _of_objects(steps: Sequence[Any]) -> Iterator[PlanStep]:
    for place, step in enumerate(steps, 1):
        if not isinstance(step, Mapping) or not isinstance(tool := cast("Mapping[str, Any]", step).get("tool"), str):
            raise PlanRefused(f"step {place} of the plan is not an object with a tool; it is {_json(step)}")
        step = cast("Mapping[str, Any]", step)
        label = re.fullmatch(r"#?E?([0-9]{1,9})", str(step.get("id", place)))
        if label is None:
            raise PlanRefused(f"step {place} of the plan has the id {step['id']!r}; ids are E1, E2 and so on")
        arguments = step.get("arguments", {})
        if not isinstance(arguments, (dict, str)):
            raise PlanRefused(f"the arguments of step #E{label[1]} are {_json(arguments)}; they have to be an object")
        why = step.get("plan") or step.get("why") or ""
        yield PlanStep(_id(label[1]), tool, cast("Arguments", arguments), _one_line(str(why)))


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts among the arguments, however deep, but not the names of arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in cast("Mapping[str, Any]", value).values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _texts(inner)


def _substituted(value: Any, evidence: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        whole = _LABEL.fullmatch(value.strip())
        return evidence[_id(whole[1])] if whole else _LABEL.sub(lambda label: _as_text(evidence[_id(label[1])]), value)
    if isinstance(value, Mapping):
        return {name: _substituted(inner, evidence) for name, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [_substituted(inner, evidence) for inner in cast("list[Any]", value)]
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _one_line(text: str) -> str:
    return " ".join(text.split()).strip("* ")


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(f"#{step}" for step in sorted(ids, key=_number))


def _id(number: str) -> str:
    return f"E{int(number)}"


def _number(id: str) -> int:
    return int(id.lstrip("#E"))
