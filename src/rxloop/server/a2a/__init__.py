"""A2A 1.0: an agent for other agents, over the log."""

from importlib.util import find_spec

if find_spec("a2a") is None or find_spec("sse_starlette") is None:
    from rxloop.errors import ConfigurationError

    raise ConfigurationError("A2A needs its SDK, which is not installed: pip install 'rxloop[a2a]'")
