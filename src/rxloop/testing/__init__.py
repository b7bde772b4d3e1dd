"""Help for tests: virtual time, marble diagrams, recorded runs, workers that are killed (`chaos/`)."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.demo.conversation import Conversation as Conversation
    from rxloop.demo.conversation import PastCall as PastCall
    from rxloop.demo.conversation import Reply as Reply
    from rxloop.demo.conversation import Rule as Rule
    from rxloop.demo.offline import OfflineModel as OfflineModel
    from rxloop.demo.offline import demo_model as demo_model
    from rxloop.demo.offline import serve_in_thread as serve_in_thread
    from rxloop.providers.scripted import ScriptedCall as ScriptedCall
    from rxloop.providers.scripted import ScriptedModel as ScriptedModel
    from rxloop.providers.scripted import ScriptExhausted as ScriptExhausted
    from rxloop.providers.scripted import call as call
    from rxloop.providers.scripted import frames as frames
    from rxloop.providers.scripted import turn as turn
    from rxloop.testing.clock import VirtualTime as VirtualTime
    from rxloop.testing.clock import virtual_time as virtual_time
    from rxloop.testing.marbles import assert_marbles as assert_marbles
    from rxloop.testing.marbles import marbles as marbles
    from rxloop.testing.recorded import recorded as recorded
    from rxloop.testing.recorded import recorded_events as recorded_events
    from rxloop.testing.virtual_loop import NothingLeft as NothingLeft
