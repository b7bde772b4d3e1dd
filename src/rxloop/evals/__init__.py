"""Experiments that compare models, prompts and settings by scores.

An experiment runs each case with each variant of an agent and scores the answers. Reports can be compared.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names, read by type checkers and `import_later`.
if TYPE_CHECKING:
    from rxloop.evals import score as score
    from rxloop.evals.case import Case as Case
    from rxloop.evals.experiment import Experiment as Experiment
    from rxloop.evals.experiment import experiment as experiment
    from rxloop.evals.report import Comparison as Comparison
    from rxloop.evals.report import Report as Report
    from rxloop.evals.report import compare as compare
    from rxloop.evals.runner import Variant as Variant
    from rxloop.evals.scorer import Score as Score
    from rxloop.evals.scorer import Scorer as Scorer
    from rxloop.evals.trials import Trial as Trial
