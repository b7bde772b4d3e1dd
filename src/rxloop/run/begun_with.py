"""The options of a run in its `task` event, so that whoever resumes it goes on as it was begun.

Only what was given with the run is kept: a setting of the agent may change with the next deploy, and is then that of
the new agent for its older runs, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rxloop.errors import ConfigurationError
from rxloop.pipeline.seams import Provider
from rxloop.protocol.frozen import thawed
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.options import Options

if TYPE_CHECKING:
    from rxloop.tools.client_tool import ClientTool

log = logging.getLogger("rxloop")

_SECRET = {"headers"}
"""Credentials travel in headers: they are not written into a log."""


def kept(options: Options, client: Sequence[ClientTool] = ()) -> dict[str, Any] | None:
    """What of the options of a run its `task` event keeps; None if there is nothing to keep.

    A model and a strategy that were given as text can be made again of it. Of a provider only the name is kept.

    Args:
        options: What was said of the run.
        client: The tools that its client carries out.
    """
    model, strategy = options.get("model"), options.get("strategy")
    settings, limits = options.get("settings"), options.get("limits")
    found: dict[str, Any] = {}
    if isinstance(model, str):
        found["model"] = model
    elif model is not None:
        found["provider"] = model.name
    if settings is not None:
        found["settings"] = settings.model_dump(mode="json", exclude_unset=True, exclude=_SECRET)
    if limits is not None:
        found["limits"] = limits.model_dump(mode="json", exclude_unset=True)
    if isinstance(strategy, str):
        found["strategy"] = strategy
    if client:
        found["client_tools"] = [tool.as_definition() for tool in client]
    return found or None


def resumed_with(given: Options, begun: Mapping[str, Any]) -> Options:
    """The options of a resumption: those that are given with it, and those that the run was begun with elsewhere.

    Settings and limits are joined field by field.

    Raises:
        ConfigurationError: The run was begun with something that cannot be read any more.
    """
    options = given.copy()
    if given.get("model") is None and "model" in begun:
        options["model"] = begun["model"]
    if given.get("strategy") is None and "strategy" in begun:
        options["strategy"] = begun["strategy"]
    if given.get("client_tools") is None and "client_tools" in begun:
        options["client_tools"] = begun["client_tools"]
    try:
        settings = ModelSettings.model_validate(thawed(begun["settings"])) if "settings" in begun else None
        limits = Limits.model_validate(thawed(begun["limits"])) if "limits" in begun else None
    except ValidationError as error:
        raise ConfigurationError(f"what the run was begun with cannot be read: {error}") from error
    if settings is not None:
        options["settings"] = (given.get("settings") or ModelSettings()).over(settings)
    if limits is not None:
        options["limits"] = (given.get("limits") or Limits()).over(limits)
    return options


def compare_model(task_id: str, given: Options, begun: Mapping[str, Any], model: Provider) -> None:
    """Tell whoever resumes a run that its model was given as an object, if the agent has another one."""
    name = begun.get("provider")
    if name is not None and given.get("model") is None and name != model.name:
        log.warning(
            "the run %s was begun with the model %s, of which only the name is kept, and goes on with %s: "
            "agent.resume(..., model=) takes the first",
            task_id,
            name,
            model.name,
        )
