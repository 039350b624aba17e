"""Questions with stated times. A file says what is given and what is asked; each ``ask`` is a function.

This table is the only other place that knows of them. Each is a function of a ``Scenario`` that reads its own tables
and returns a dataclass; ``reports.scenarios`` has the words for it under the same name.
"""

from collections.abc import Mapping
from types import MappingProxyType

ASKS: Mapping[str, str] = MappingProxyType(
    {
        "crossover": "paceline.studies.scenarios.run:find_crossover",
        "explain": "paceline.studies.scenarios.questions:read_request",
        "lower-bound": "paceline.studies.scenarios.questions:least_traffic",
        "peak": "paceline.studies.scenarios.questions:peak",
        "predict": "paceline.studies.scenarios.predicted:predicted",
        "run": "paceline.studies.scenarios.run:run",
        "scaling": "paceline.studies.scenarios.questions:scaling",
    }
)
