"""YAML loader that rejects aliases and duplicate keys. PyYAML is an extra."""

from __future__ import annotations

from functools import cache
from typing import Any

from rxloop.errors import ConfigurationError


class InvalidYAML(ValueError):
    """Invalid YAML, an alias or a duplicate key. The message contains line and column."""


def import_yaml(purpose: str) -> Any:
    """Import PyYAML.

    Args:
        purpose: Start of the error message, such as "Reading skills".

    Raises:
        ConfigurationError: PyYAML is not installed.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigurationError(
            f'{purpose} requires pyyaml, which is not installed; pip install "rxloop[yaml]"'
        ) from None
    return yaml


def load_yaml(text: str, first_line: int = 1) -> Any:
    """Load a YAML document. Empty documents return None.

    Args:
        text: YAML document.
        first_line: Line number of the first line, for error messages.

    Raises:
        InvalidYAML: The text is not valid YAML, or it contains an alias or a duplicate key.
        ConfigurationError: PyYAML is not installed.
    """
    yaml = import_yaml("Reading YAML")
    try:
        return yaml.load(text, Loader=_make_loader())
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        position = f" (line {mark.line + first_line}, column {mark.column + 1})" if mark is not None else ""
        raise InvalidYAML(f"{problem}{position}") from None
    except RecursionError:
        raise InvalidYAML("the values are nested too deeply") from None
    except (ValueError, TypeError, ArithmeticError) as error:
        # Invalid dates, numbers or base64.
        raise InvalidYAML(str(error)) from None


@cache
def _make_loader() -> Any:
    from yaml import AliasEvent, MarkedYAMLError, SafeLoader

    class Loader(SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            events: Any = self
            event = events.peek_event()
            # Aliases can expand to millions of values.
            if isinstance(event, AliasEvent):
                problem = f"aliases are not supported, replace *{event.anchor} by the value"
                raise MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = set[str]()
            for key, _ in node.value:
                if key.id == "scalar" and key.value in keys:
                    problem = f"the key {key.value!r} appears twice in one mapping"
                    raise MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                keys.add(str(key.value))
            return super().construct_mapping(node, deep)

    return Loader
