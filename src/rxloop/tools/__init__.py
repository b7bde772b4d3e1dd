"""What a model may call. Use `rxloop.tool` for functions; this package has the types of tools and of their options."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.tools.agent_tools import AnyTool as AnyTool
    from rxloop.tools.client_tool import ClientTool as ClientTool
    from rxloop.tools.function import FunctionTool as FunctionTool
    from rxloop.tools.function import ToolOptions as ToolOptions
