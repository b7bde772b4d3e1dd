"""Adapters (HTTP API, AG-UI, the AI SDK's UI stream, OpenAI's API, A2A, MCP, viewer), and `core/`, the kit for them."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later


def _require_starlette() -> None:
    try:
        import starlette as _  # noqa: F401
    except ModuleNotFoundError as error:
        from rxloop.errors import ConfigurationError

        raise ConfigurationError(
            "the server needs starlette, which is not installed: pip install 'rxloop[server]'"
        ) from error


__all__: list[str]
_require_starlette()
import_later(__name__)

# Lists the public names for type checkers and for `import_later`.
if TYPE_CHECKING:
    from rxloop.server.a2a.adapter import A2A as A2A
    from rxloop.server.a2a.adapter import a2a as a2a
    from rxloop.server.a2a.push import PushOptions as PushOptions
    from rxloop.server.agui.adapter import AgUi as AgUi
    from rxloop.server.agui.adapter import agui as agui
    from rxloop.server.agui.requests import agui_context as agui_context
    from rxloop.server.core.account import ServerLimits as ServerLimits
    from rxloop.server.core.adapter import Adapter as Adapter
    from rxloop.server.core.gateway import Principal as Principal
    from rxloop.server.core.gateway import bearer as bearer
    from rxloop.server.core.shutdown import Shutdown as Shutdown
    from rxloop.server.http import Api as Api
    from rxloop.server.http import api as api
    from rxloop.server.mcp.adapter import McpServer as McpServer
    from rxloop.server.mcp.adapter import mcp_server as mcp_server
    from rxloop.server.mcp.stdio import serve_stdio as serve_stdio
    from rxloop.server.mcp.thinking_tools import ThinkingTools as ThinkingTools
    from rxloop.server.mcp.thinking_tools import make_connection_sessions as make_connection_sessions
    from rxloop.server.mcp.tools import AgentTool as AgentTool
    from rxloop.server.metrics import MetricsAdapter as MetricsAdapter
    from rxloop.server.metrics import metrics as metrics
    from rxloop.server.openai import openai_api as openai_api
    from rxloop.server.ui_messages import UiStream as UiStream
    from rxloop.server.ui_messages import ui_stream as ui_stream
    from rxloop.server.viewer.adapter import Viewer as Viewer
    from rxloop.server.viewer.adapter import viewer as viewer
