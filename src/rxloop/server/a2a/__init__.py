"""A2A 1.0 adapter, which serves an agent to other agents."""

from importlib.util import find_spec

if find_spec("a2a") is None or find_spec("sse_starlette") is None:
    from rxloop.errors import ConfigurationError

    raise ConfigurationError("a2a() requires the a2a-sdk package. Install it with: pip install 'rxloop[a2a]'")
