"""Reasoning strategies, defined by stages and transitions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from functools import cached_property
from os import PathLike
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, cast, get_args

from pydantic import BeforeValidator, ConfigDict

from rxloop.errors import ConfigurationError
from rxloop.support.text import to_mermaid_text, to_short_repr
from rxloop.thinking.stages import routes

Feature = Literal[
    "external_tools", "multiple_paths", "backtracking", "revision", "verification", "dynamic_thought_count", "consensus"
]

BranchingKind = Literal["explicit", "parallel_paths", "tree"]

_NAME = re.compile(r"\w[\w.-]{0,99}")

# Names that are valid node ids. Mermaid reserves these words.
_ID = re.compile(r"(?!(?:end|graph|flowchart|subgraph|direction|style|linkstyle|class|classdef|click|default)$)\w+")

_MAX_STAGES = 500
"""Maximum number of stages. The time for derived data is quadratic in it."""


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _names(value: Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _list_stages(value: object) -> object:
    """Convert stages by name to a list of named stages."""
    if not isinstance(value, Mapping):
        return value
    stages = cast("Mapping[object, object]", value)
    return [_name_stage(name, stage) for name, stage in stages.items()]


def _name_stage(name: object, stage: object) -> object:
    if stage is not None and not isinstance(stage, Mapping):
        return stage
    fields = {"name": name, **cast("Mapping[str, object]", stage or {})}
    if fields["name"] != name:
        raise ConfigurationError(f"the stage with the key {name!r} has the name {fields['name']!r}")
    return fields


Names = Annotated[Sequence[str], BeforeValidator(_one_or_many)]
"""Several names as a tuple. A single string is accepted as well."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Stage of a reasoning strategy."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    next: Names = ()
    """Allowed next stages, in presentation order."""
    description: str = ""
    """Short description for people."""
    prompt: str = ""
    """Instructions for the model. Defaults to the description."""
    fields: Names = ()
    """Wire names of the required fields of a thought in this stage. `a|b` requires one of both."""

    def __post_init__(self) -> None:
        _set(self, next=_names(self.next), fields=_names(self.fields), prompt=self.prompt or self.description)

    def find_missing(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the required fields that are not among the names."""
        return tuple(field for field in self.fields if not any(name in names for name in field.split("|")))


@dataclass(frozen=True, kw_only=True)
class IterationPoint:
    """Decision to repeat a loop of stages."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    stage: str
    back_to: Names
    """Possible first stages of the repeated loop."""
    via: Names = ()
    """Intermediate stages between the decision and the loop start, if there is no direct transition."""

    def __post_init__(self) -> None:
        _set(self, back_to=_names(self.back_to), via=_names(self.via))


@dataclass(frozen=True, kw_only=True)
class Branching:
    """Stage for opening branches."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    kind: BranchingKind
    stage: str
    fields: Names = ()
    """Thought fields that identify branches."""

    def __post_init__(self) -> None:
        _set(self, fields=_names(self.fields))


@dataclass(frozen=True, kw_only=True)
class StrategyDefinition:
    """An immutable reasoning strategy, validated on creation.

    Every stage is reachable, and the end is reachable from every stage.

    Raises:
        ConfigurationError: If the strategy is inconsistent. The message names the strategy and the stage.

    Example:
        >>> StrategyDefinition(
        ...     name="draft_and_check",
        ...     stages=[
        ...         Stage(name="draft", next="check", prompt="Write a first version."),
        ...         Stage(name="check", next=["draft", "answer"], prompt="Is it right? If not, write it again."),
        ...         Stage(name="answer", prompt="Give the answer."),
        ...     ],
        ... ).decision_points
        ('check',)
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    stages: Annotated[Sequence[Stage], BeforeValidator(_list_stages)]
    title: str = ""
    """Display name. Derived from `name` by default."""
    aliases: Names = ()
    when: str = ""
    """One-sentence usage recommendation for people and models."""
    pattern: str = "custom"
    """Flow pattern, for example `linear`, `cyclic` or `branching`."""
    initial: str = ""
    """Initial stage. Defaults to the first stage."""
    terminal: Names = ()
    """Terminal stages. Defaults to the last stage."""
    decision_points: Names = ()
    """Stages with multiple transitions. Derived automatically, and validated if provided."""
    iteration_point: IterationPoint | None = None
    branching: Branching | None = None
    features: Set[Feature] = field(default_factory=frozenset[Feature])

    def __post_init__(self) -> None:
        stages = tuple(self.stages)
        if not stages:
            self._fail("has no stages")
        if len(stages) > _MAX_STAGES:
            self._fail(f"must have at most {_MAX_STAGES} stages, got {len(stages)}")
        _set(
            self,
            stages=stages,
            title=self.title or self.name.replace("_", " ").capitalize(),
            aliases=_names(self.aliases),
            initial=self.initial or stages[0].name,
            terminal=_names(self.terminal) or (stages[-1].name,),
            features=frozenset(self.features),
        )
        self._check_names()
        self._check_transitions()
        chosen = tuple(stage.name for stage in stages if len(stage.next) > 1)
        named = _names(self.decision_points)
        if named and set(named) != set(chosen):
            self._fail(
                f"names {_listed(named)} as decision points, but there is a choice after {_listed(chosen) or 'none'}"
            )
        _set(self, decision_points=chosen)
        self._check_points()

    @classmethod
    def from_json(cls, source: str | bytes | PathLike[str]) -> StrategyDefinition:
        """Parse a strategy from a JSON string, or from the file at a `Path`.

        The keys are the fields of this class. `stages` is an object of stages by name, or a list of stages.

        Raises:
            ConfigurationError: If the strategy is invalid. The message gives the reason and the location.
        """
        from rxloop.thinking.stages import files as load

        return load.from_json(cls, source)

    @classmethod
    def from_yaml(cls, source: str | bytes | PathLike[str]) -> StrategyDefinition:
        """Parse a strategy from YAML, like `from_json`. Requires the extra `yaml`.

        Raises:
            ConfigurationError: If the strategy is invalid, or the extra is not installed.
        """
        from rxloop.thinking.stages import files as load

        return load.from_yaml(cls, source)

    def __getstate__(self) -> dict[str, Any]:
        # Exclude cached properties, because some cannot be copied.
        return {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}

    def stage(self, name: str) -> Stage:
        """Return a stage by name.

        Raises:
            ConfigurationError: If the strategy has no such stage.
        """
        stage = self._by_name.get(name)
        if stage is None:
            raise ConfigurationError(
                f"strategy {self.name!r} has no stage {name!r}; its stages are {_listed(self._by_name)}"
            )
        return stage

    def __contains__(self, stage: object) -> bool:
        return stage in self._by_name

    @cached_property
    def transitions(self) -> Mapping[str, tuple[str, ...]]:
        """Allowed transitions by stage."""
        return MappingProxyType({stage.name: tuple(stage.next) for stage in self.stages})

    @cached_property
    def loops(self) -> tuple[routes.Edge, ...]:
        """Back edges, with at least one per cycle."""
        return routes.find_loops(self.transitions, self.initial)

    def steps_to_end(self, stage: str) -> int:
        """Return the number of transitions on the shortest path from a stage to the end."""
        return self._steps[self.stage(stage).name]

    def ways(self, closed: frozenset[routes.Edge] = frozenset()) -> routes.Routes:
        """Return allowed transitions with distances to the end, excluding closed loops."""
        ways = self._ways.get(closed)
        if ways is None:
            ways = self._ways[closed] = routes.find_routes(self.transitions, self.terminal, closed)
        return ways

    def to_mermaid(self) -> str:
        """Render the strategy as a Mermaid flowchart.

        Decision points are diamonds, initial and terminal stages have rounded corners, and back edges are dotted.
        """
        plain = all(_ID.fullmatch(stage.name.lower()) and stage.name.isascii() for stage in self.stages)
        ids = {stage.name: stage.name if plain else f"n{index}" for index, stage in enumerate(self.stages)}
        lines = ["flowchart TD"]
        for stage in self.stages:
            opening, closing = self._shape(stage.name)
            lines.append(f'    {ids[stage.name]}{opening}"{to_mermaid_text(stage.name.replace("_", " "))}"{closing}')
        for source, targets in self.transitions.items():
            for target in targets:
                arrow = "-. again .->" if (source, target) in self.loops else "-->"
                lines.append(f"    {ids[source]} {arrow} {ids[target]}")
        return "\n".join(lines) + "\n"

    def _shape(self, stage: str) -> tuple[str, str]:
        if stage in self.decision_points:
            return "{", "}"
        return ("([", "])") if stage == self.initial or stage in self.terminal else ("[", "]")

    def describe(self) -> str:
        """Return a text description of the strategy, including stages and transitions."""
        aliases = f" (also {', '.join(self.aliases)})" if self.aliases else ""
        lines = [f"{self.name}{aliases}: {self.title}", *([self.when] if self.when else []), ""]
        for number, stage in enumerate(self.stages, 1):
            lines.append(f"{number:2}. {stage.name}{f': {stage.description}' if stage.description else ''}")
            if stage.fields:
                lines.append(f"      needs {', '.join(field.replace('|', ' or ') for field in stage.fields)}")
            if stage.next:
                back = {target for source, target in self.loops if source == stage.name}
                targets = (f"back to {target}" if target in back else target for target in stage.next)
                lines.append(f"      then {' or '.join(targets)}")
        return "\n".join(lines) + "\n"

    @cached_property
    def _by_name(self) -> dict[str, Stage]:
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def _steps(self) -> dict[str, int]:
        return routes.measure_steps(self.transitions, self.terminal)

    @cached_property
    def _ways(self) -> dict[frozenset[routes.Edge], routes.Routes]:
        return {}

    def _check_names(self) -> None:
        for name in (self.name, *self.aliases):
            if not _NAME.fullmatch(name):
                self._fail(
                    f"has the name {to_short_repr(name)}; a name has at most 100 letters, digits, '_', '-' and '.'"
                )
        names = set[str]()
        for stage in self.stages:
            if not _NAME.fullmatch(stage.name):
                self._fail(
                    f"has a stage {to_short_repr(stage.name)}; a name has at most 100 letters, digits, '_', '-' and '.'"
                )
            if stage.name in names:
                self._fail(f"has two stages {stage.name!r}")
            names.add(stage.name)
        for role, name in [("initial", self.initial), *(("terminal", name) for name in self.terminal)]:
            if name not in names:
                self._fail(f"has no stage {name!r}, named as {role}")
        unknown = sorted(self.features - set(get_args(Feature)))
        if unknown:
            self._fail(f"has the unknown feature {unknown[0]!r}; expected {_listed(get_args(Feature))}")

    def _check_transitions(self) -> None:
        for stage in self.stages:
            seen = set[str]()
            for target in stage.next:
                if target not in self._by_name:
                    self._fail(f"has no stage {to_short_repr(target)}, named as the next stage of {stage.name!r}")
                if target in seen:
                    self._fail(f"names {target!r} twice after {stage.name!r}")
                if target == stage.name:
                    self._fail(f"lets {target!r} follow itself; a further thought in a stage needs no transition")
                seen.add(target)
            if stage.name in self.terminal and stage.next:
                self._fail(f"ends at {stage.name!r}, but lets {_listed(stage.next)} follow it")
        reachable = routes.find_reachable(self.transitions, self.initial)
        lost = [name for name in self.transitions if name not in reachable]
        if lost:
            self._fail(f"has no path from {self.initial!r} to {_listed(lost)}")
        stuck = [name for name in self.transitions if name not in self._steps]
        if stuck:
            hint = "" if all(self.transitions[name] for name in stuck) else "; list every end in `terminal`"
            self._fail(f"has no path from {_listed(stuck)} to its end, {_listed(self.terminal)}{hint}")

    def _check_points(self) -> None:
        point = self.iteration_point
        if point is not None:
            if point.stage not in self.decision_points:
                self._fail(f"has the iteration point {point.stage!r}, which is not a decision point")
            follow = self.transitions[point.stage]
            for stage in point.via:
                if stage not in follow:
                    self._fail(f"iterates via {stage!r}, which may not follow {point.stage!r}")
            after = {*follow, *(target for stage in point.via for target in self.transitions[stage])}
            for stage in point.back_to:
                if stage not in after:
                    self._fail(f"iterates back to {stage!r}, which cannot be reached from {point.stage!r}")
        if self.branching is not None and self.branching.stage not in self:
            self._fail(f"branches at {self.branching.stage!r}, which is not one of its stages")

    def _fail(self, problem: str) -> NoReturn:
        raise ConfigurationError(f"strategy {to_short_repr(self.name)} {problem}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _set(target: object, **values: object) -> None:
    """Convert fields of a frozen dataclass during creation."""
    for name, value in values.items():
        object.__setattr__(target, name, value)
