"""The quality of a model: its perplexity on a text, and its divergence from another model.

Both are computed as they are served: with the plan's weights, kernels and paged cache. Imports no
torch.
"""

from inferno.evaluation.evaluate import evaluate
from inferno.evaluation.groups import BY
from inferno.evaluation.measures import Divergence, Perplexity
from inferno.evaluation.plot import plot
from inferno.evaluation.report import GroupReport, Report, report_to_json
from inferno.evaluation.windows import Window, windows_of

__all__ = [
    "BY",
    "Divergence",
    "GroupReport",
    "Perplexity",
    "Report",
    "Window",
    "evaluate",
    "plot",
    "report_to_json",
    "windows_of",
]
