"""ReWOO plan parser and data types."""

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
"""Call arguments, either by name or as unparsed text."""

_LABEL = re.compile(r"#E([0-9]{1,9})")

_STEP = re.compile(r"#E([0-9]{1,9})\**\s*=\s*([\w.-]+)\s*\[")

_REASON_LABEL = re.compile(r"\bplan\b[ 0-9]*:", re.IGNORECASE)

_FENCE = re.compile(r"```(?:json)?(.*?)```", re.DOTALL)

_FORM = 'write each on a line as `Plan: why. #E1 = tool_name[{"argument": "value"}]`'


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Single tool call within a plan."""

    id: str
    """Label without the leading number sign, for example `E1`."""
    tool: str
    arguments: Arguments
    why: str = ""
    """Reason given in the plan."""

    @property
    def needs(self) -> frozenset[str]:
        """Labels referenced by the arguments."""
        return frozenset(_id(number) for text in _strings(self.arguments) for number in _LABEL.findall(text))


@dataclass(frozen=True)
class Plan:
    """Acyclic plan with steps ordered by label.

    Raises:
        PlanRefused: Duplicate label, unknown reference or cyclic dependency.
    """

    steps: tuple[PlanStep, ...]

    def __post_init__(self) -> None:
        steps = tuple(sorted(self.steps, key=lambda step: _number(step.id)))
        object.__setattr__(self, "steps", steps)
        if not steps:
            raise PlanRefused(f"the plan must have at least one step; {_FORM}")
        ids = [step.id for step in steps]
        if twice := [each for each, count in Counter(ids).items() if count > 1]:
            raise PlanRefused(f"step numbers must be unique, got #{twice[0]} twice")
        for step in steps:
            if unknown := step.needs - set(ids):
                raise PlanRefused(f"step #{step.id} uses unknown steps {_join(unknown)}, expected {_join(ids)}")
        if cycle := self._find_cycle():
            raise PlanRefused(
                f"circular dependency between steps: #{' -> #'.join(cycle)}. Remove one of the references."
            )

    def __iter__(self) -> Iterator[PlanStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, id: str) -> PlanStep:
        step = self._by_id.get(id.removeprefix("#"))
        if step is None:
            raise KeyError(id)
        return step

    def list_ready(self, done: Collection[str], running: Collection[str] = ()) -> tuple[PlanStep, ...]:
        """List pending steps with completed dependencies, excluding running steps."""
        finished = set(done)
        pending = [step for step in self.steps if step.id not in finished and step.id not in running]
        return tuple(step for step in pending if self.dependencies[step.id] <= finished)

    def arguments(self, id: str, evidence: Mapping[str, Any]) -> Arguments | Any:
        """Replace the labels in the arguments of a step by results.

        A string that consists of one label is replaced by the result itself, of any type. Within a longer string, the
        result is inserted as text or as JSON. Labels inside results are not replaced.

        Args:
            id: Id of the step.
            evidence: Results by step id.

        Raises:
            PlanRefused: If a required result is missing.
        """
        step = self[id]
        if missing := step.needs - set(evidence):
            raise PlanRefused(f"step #{step.id} needs the missing result of {_join(missing)}")
        return _substitute(step.arguments, evidence)

    def format_with_evidence(self, evidence: Mapping[str, Any]) -> str:
        """Format the plan and its results for the answering model."""
        lines: list[str] = []
        for step in self.steps:
            arguments = step.arguments if isinstance(step.arguments, str) else _json(step.arguments)
            lines += [f"Plan: {step.why}"] if step.why else []
            lines.append(f"#{step.id} = {step.tool}[{arguments}]")
            lines.append(f"Evidence: {_as_text(evidence[step.id])}" if step.id in evidence else "Evidence: none")
        return "\n".join(lines)

    @cached_property
    def dependencies(self) -> Mapping[str, frozenset[str]]:
        """Mapping of step ids to the ids of required steps."""
        return {step.id: step.needs for step in self.steps}

    @cached_property
    def _by_id(self) -> dict[str, PlanStep]:
        return {step.id: step for step in self.steps}

    def _find_cycle(self) -> list[str]:
        """Return a dependency cycle with the first step repeated, or an empty list."""
        done = set[str]()
        while ready := self.list_ready(done):
            done.update(step.id for step in ready)
        remaining = [step.id for step in self.steps if step.id not in done]
        # Each remaining step depends on another remaining step, so following them leads to a cycle.
        path = remaining[:1]
        while path:
            following = min(self.dependencies[path[-1]] - done, key=_number)
            if following in path:
                return [*path[path.index(following) :], following]
            path.append(following)
        return path


def parse_plan(text: str, tools: Collection[str] | None = None) -> Plan:
    """Parse the plan of a model.

    Steps have the published form `#E1 = tool[input]` or `#E1 = tool[{"argument": "value"}]`. The text after a preceding
    `Plan:` is the reason of a step. All other text is ignored. Alternatively, the text is a JSON list of steps,
    optionally in a code fence: `[{"id": "E1", "tool": "search", "arguments": {...}, "plan": "why"}]`.

    Args:
        text: Text of the model.
        tools: Names of the available tools. None accepts any name.

    Raises:
        PlanRefused: If the plan has no steps or cannot be executed. The message is written for the model.
    """
    try:
        json_steps = _parse_json_steps(text)
        plan = Plan(tuple(_steps_from_json(json_steps) if json_steps is not None else _steps_from_text(text)))
    except RecursionError:
        raise PlanRefused(f"the plan must not be nested too deeply; {_FORM}") from None
    for step in plan:
        if tools is not None and step.tool not in tools:
            raise PlanRefused(f"step #{step.id} uses unknown tool {step.tool!r}, expected one of {', '.join(tools)}")
    return plan


def _steps_from_text(text: str) -> Iterator[PlanStep]:
    position = 0
    while match := _STEP.search(text, position):
        arguments, end = _parse_input(text, match)
        before = text[position : match.start()]
        why = _REASON_LABEL.search(before)
        yield PlanStep(_id(match[1]), match[2], arguments, _one_line(before[why.end() :]) if why else "")
        position = end


def _parse_input(text: str, match: re.Match[str]) -> tuple[Arguments, int]:
    """Parse bracketed step input and return it with the end index."""
    start = match.end()
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    if text.startswith("{", begin):
        return _parse_json_input(text, begin, match[1])
    depth = 1
    for index in range(start, len(text)):
        depth += {"[": 1, "]": -1}.get(text[index], 0)
        if depth == 0:
            return text[start:index].strip(), index + 1
    raise PlanRefused(f"missing closing bracket in step #E{match[1]}; {_FORM}")


def _parse_json_input(text: str, begin: int, number: str) -> tuple[Arguments, int]:
    try:
        arguments, end = json.JSONDecoder(strict=False).raw_decode(text, begin)
    except json.JSONDecodeError as error:
        excerpt = text[error.pos : error.pos + 20].split("\n")[0]
        raise PlanRefused(f"invalid JSON in step #E{number}: {error.msg} at {excerpt!r}") from None
    remainder = text[end:].lstrip()
    if not remainder.startswith("]"):
        raise PlanRefused(f"missing closing bracket after the arguments of step #E{number}; {_FORM}")
    return arguments, len(text) - len(remainder) + 1


def _parse_json_steps(text: str) -> list[Any] | None:
    """Return the steps if the text is JSON."""
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


def _steps_from_json(steps: Sequence[Any]) -> Iterator[PlanStep]:
    for index, step in enumerate(steps, 1):
        if not isinstance(step, Mapping) or not isinstance(tool := cast("Mapping[str, Any]", step).get("tool"), str):
            raise PlanRefused(f'step {index} must be an object with the key "tool", got {_json(step)}')
        step = cast("Mapping[str, Any]", step)
        label = re.fullmatch(r"#?E?([0-9]{1,9})", str(step.get("id", index)))
        if label is None:
            raise PlanRefused(f"invalid id {step['id']!r} in step {index}, expected E1, E2 and so on")
        arguments = step.get("arguments", {})
        if not isinstance(arguments, (dict, str)):
            raise PlanRefused(f"the arguments of step #E{label[1]} must be an object, got {_json(arguments)}")
        why = step.get("plan") or step.get("why") or ""
        yield PlanStep(_id(label[1]), tool, cast("Arguments", arguments), _one_line(str(why)))


def _strings(value: Any) -> Iterator[str]:
    """Yield nested string values, excluding argument names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in cast("Mapping[str, Any]", value).values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _strings(inner)


def _substitute(value: Any, evidence: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        whole = _LABEL.fullmatch(value.strip())
        return evidence[_id(whole[1])] if whole else _LABEL.sub(lambda label: _as_text(evidence[_id(label[1])]), value)
    if isinstance(value, Mapping):
        return {name: _substitute(inner, evidence) for name, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [_substitute(inner, evidence) for inner in cast("list[Any]", value)]
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _one_line(text: str) -> str:
    return " ".join(text.split()).strip("* ")


def _join(ids: Iterable[str]) -> str:
    return ", ".join(f"#{step}" for step in sorted(ids, key=_number))


def _id(number: str) -> str:
    return f"E{int(number)}"


def _number(id: str) -> int:
    return int(id.lstrip("#E"))
