"""Agents and how their runs are made: options, batches, agents as tools.

Use `rxloop.Agent` for everything. This package has the types of its options, and of runs that are not started or are
addressed by id, for code that passes them on.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.agents.batch import ColdRun as ColdRun
    from rxloop.agents.options import AgentOptions as AgentOptions
    from rxloop.agents.options import AgentToolOptions as AgentToolOptions
    from rxloop.agents.options import ForkOptions as ForkOptions
    from rxloop.agents.options import MapOptions as MapOptions
    from rxloop.agents.options import ResumeOptions as ResumeOptions
    from rxloop.agents.options import RunOptions as RunOptions
    from rxloop.agents.remote_run import RemoteRun as RemoteRun
    from rxloop.protocol.ids import derive_id as derive_id
    from rxloop.run.spec import Steer as Steer
