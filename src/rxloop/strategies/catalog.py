"""The nine strategies by name.

Each strategy is a module that defines `STAGES` and a function of the same name as the module. The module is imported on
first use, so a lookup by name does not load the other eight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Literal, cast, get_args

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import Strategy
from rxloop.thinking.stages import StrategyDefinition

StrategyName = Literal[
    "linear",
    "chain_of_thought",
    "react",
    "rewoo",
    "scratchpad",
    "self_ask",
    "self_consistency",
    "step_back",
    "tree_of_thoughts",
]
"""Name of a strategy. At runtime, names are case-insensitive, and aliases are accepted too."""

_NAMES: tuple[StrategyName, ...] = get_args(StrategyName)


class _Definitions(Mapping[str, StrategyDefinition]):
    """Lazy mapping of strategy names to definitions."""

    def __getitem__(self, name: str) -> StrategyDefinition:
        if name not in _NAMES:
            raise KeyError(name)
        return cast("StrategyDefinition", _import_attribute(name, "STAGES"))

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


STRATEGIES: Mapping[str, StrategyDefinition] = _Definitions()
"""Strategy definitions by name. Accessing an entry imports its module."""


def get_stages(name: str) -> StrategyDefinition:
    """Look up a strategy definition by name or alias.

    Names are case-insensitive, and hyphens, spaces and underscores are equivalent.

    Raises:
        ConfigurationError: Unknown strategy name. The message lists the valid names.
    """
    normal_name = name.strip().lower().replace("-", "_").replace(" ", "_")
    if normal_name in STRATEGIES:
        return STRATEGIES[normal_name]
    for definition in STRATEGIES.values():
        if normal_name in definition.aliases:
            return definition
    # Imported lazily, because correct programs do not need it.
    from rxloop._names import find_nearest

    nearest = find_nearest(normal_name, _NAMES)
    hint = "" if nearest is None else f" did you mean {nearest!r}?"
    raise ConfigurationError(f"unknown strategy {name!r};{hint} expected one of {', '.join(_NAMES)}")


def load_strategy(name: str) -> Strategy:
    """Create a strategy with default arguments from a name or alias.

    Raises:
        ConfigurationError: Unknown strategy name. The message lists the valid names.
    """
    module = get_stages(name).name
    return cast("Callable[[], Strategy]", _import_attribute(module, module))()


def _import_attribute(strategy: str, attribute: str) -> object:
    return getattr(import_module(f"rxloop.strategies.{strategy}"), attribute)
