"""Agents, options for runs, batches, and agents as tools.

Most programs only need `rxloop.Agent`. This package exports the types of options, cold runs and remote runs for use in
annotations.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Type checkers and `import_later` read the public names from this list.
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
