"""The nine strategies by name.

Each strategy is a module that defines `STAGES` and a function of the same name as the module. The module is imported on
first use, so a lookup by name does not load the other eight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import cast

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import Strategy
from rxloop.thinking.stages import StrategyDefinition

_NAMES = (
    "linear",
    "chain_of_thought",
    "react",
    "rewoo",
    "scratchpad",
    "self_ask",
    "self_consistency",
    "step_back",
    "tree_of_thoughts",
)


class _Definitions(Mapping[str, StrategyDefinition]):
    """Definitions of the nine strategies, each imported when it is read."""

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
"""Definitions of the nine strategies, by name. Reading one imports the module of that strategy only."""


def get_stages(name: str) -> StrategyDefinition:
    """Return the definition of a strategy, by its name or alias.

    Case, hyphens and spaces do not matter: `Tree-of-Thoughts` and `tree of thoughts` are `tree_of_thoughts`.

    Raises:
        ConfigurationError: No strategy has this name. The message lists the nine.
    """
    normal_name = name.strip().lower().replace("-", "_").replace(" ", "_")
    if normal_name in STRATEGIES:
        return STRATEGIES[normal_name]
    for definition in STRATEGIES.values():
        if normal_name in definition.aliases:
            return definition
    raise ConfigurationError(f"there is no strategy {name!r}; there are {', '.join(_NAMES)}")


def load_strategy(name: str) -> Strategy:
    """Create a strategy by its name or alias, with its default arguments.

    Raises:
        ConfigurationError: No strategy has this name. The message lists the nine.
    """
    module = get_stages(name).name
    return cast("Callable[[], Strategy]", _import_attribute(module, module))()


def _import_attribute(strategy: str, attribute: str) -> object:
    return getattr(import_module(f"rxloop.strategies.{strategy}"), attribute)
