"""The words for what scenarios are answered with: one module an ``ask``, under the names of ``studies.scenarios``.

Each is a function from the answer to what is told.
"""

from collections.abc import Mapping
from types import MappingProxyType

RENDERERS: Mapping[str, str] = MappingProxyType(
    {
        "crossover": "paceline.reports.scenarios.render:render_crossover",
        "explain": "paceline.reports.scenarios.render:render_request",
        "lower-bound": "paceline.reports.scenarios.render:render_least_traffic",
        "peak": "paceline.reports.scenarios.render:render_peak",
        "predict": "paceline.reports.scenarios.predicted:render_prediction",
        "run": "paceline.reports.scenarios.run:render_run",
        "scaling": "paceline.reports.scenarios.render:render_scaling",
    }
)
