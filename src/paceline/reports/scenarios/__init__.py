"""The words for what scenarios are answered with: one module an ``ask``, under the names of ``studies.scenarios``.

Each is a function from the answer to what is told.
"""

from collections.abc import Mapping
from types import MappingProxyType

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "crossover": "paceline.reports.scenarios.crossover:tell_crossover",
        "explain": "paceline.reports.scenarios.explain:tell_request",
        "lower-bound": "paceline.reports.scenarios.lower_bound:tell_least_traffic",
        "peak": "paceline.reports.scenarios.peak:tell_peak",
        "predict": "paceline.reports.scenarios.predicted:tell_prediction",
        "run": "paceline.reports.scenarios.run:tell_run",
        "scaling": "paceline.reports.scenarios.scaling:tell_scaling",
    }
)
