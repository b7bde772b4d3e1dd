"""Test tools: virtual time, marble diagrams, recorded runs and fault injection (`chaos/`)."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names, read by type checkers and `import_later`.
if TYPE_CHECKING:
    from rxloop.demo import OfflineModel as OfflineModel
    from rxloop.demo import demo_model as demo_model
    from rxloop.demo.conversation import Conversation as Conversation
    from rxloop.demo.conversation import PastCall as PastCall
    from rxloop.demo.conversation import Reply as Reply
    from rxloop.demo.conversation import Rule as Rule
    from rxloop.providers.script import ScriptedCall as ScriptedCall
    from rxloop.providers.script import ScriptedModel as ScriptedModel
    from rxloop.providers.script import ScriptedTurn as ScriptedTurn
    from rxloop.providers.script import ScriptExhausted as ScriptExhausted
    from rxloop.providers.script import call as call
    from rxloop.providers.script import frames as frames
    from rxloop.providers.script import turn as turn
    from rxloop.testing.marbles import assert_marbles as assert_marbles
    from rxloop.testing.marbles import marbles as marbles
    from rxloop.testing.marbles import recorded as recorded
    from rxloop.testing.marbles import recorded_events as recorded_events
    from rxloop.testing.virtual_time import NothingLeft as NothingLeft
    from rxloop.testing.virtual_time import VirtualTime as VirtualTime
    from rxloop.testing.virtual_time import virtual_time as virtual_time
