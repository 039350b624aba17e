"""Paleo's model here against what Paleo's own code prints, column by column: each within 1 %.

The figures were printed by Paleo (matrix-product convolutions, cuDNN off) for the networks that come with it. Its table
for Inception v3 on K40s is the one that its authors give as an example.
"""

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

from paceline.clusters.catalogue import all_devices, all_networks
from paceline.costs.paleo import SCHEMES, Paleo, as_paleo, paleo_step
from paceline.costs.trace.trace import Trace, trace
from paceline.jobs.build import traceable_of
from paceline.records.spans import StepBreakdown

MOST = 1.0
"""Per cent by which a column may differ."""

PRINTED = Path(__file__).with_name("paleo_printed.csv")
"""Its columns but the last six say what was asked; those are milliseconds."""
COLUMNS = ("forward", "backward", "apply", *SCHEMES)


def compare() -> list[dict[str, Any]]:
    traces: dict[tuple[str, int], Trace] = {}
    rows = []
    for printed in csv.DictReader(PRINTED.read_text().splitlines()):
        network, workers, batch = printed["network"], int(printed["workers"]), int(printed["batch"])
        samples = -(-batch // workers) if printed["scaling"] == "strong" else batch
        if (network, samples) not in traces:
            traces[network, samples] = trace(traceable_of(as_paleo(network)), samples)
        model = Paleo(
            device=all_devices()[printed["device"]],
            bandwidth=all_networks()[printed["link"]].bandwidth,
            compute=float(printed["ppp_comp"]),
            network=float(printed["ppp_comm"]),
        )
        traced = traces[network, samples]
        error = worst([paleo_step(model, traced, workers, scheme) for scheme in SCHEMES], printed)
        asked = {name: value for name, value in printed.items() if name not in COLUMNS}
        rows.append({**asked, "error_percent": error})
    return rows


def worst(steps: list[StepBreakdown], printed: dict[str, str]) -> float:
    """The largest difference of a column, in per cent; a step for each scheme."""
    step = steps[0]
    found = (step.forward, step.backward, step.apply, *(one.communicate for one in steps))
    pairs = [(1e3 * one, float(printed[column])) for one, column in zip(found, COLUMNS, strict=True)]
    return max(100 * (abs(one / other - 1) if other else abs(one)) for one, other in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = compare()
    met = all(row["error_percent"] < MOST for row in rows)
    if options.json:
        print(json.dumps({"schema": 1, "most": MOST, "met": met, "rows": rows}, indent=2))
    else:
        print(f"{'network':14}{'device':>10}{'link':>12}{'batch':>7}{'workers':>9}{'worst column':>15}")
        for row in rows:
            print(
                f"{row['network']:14}{row['device']:>10}{row['link']:>12}{row['batch']:>7}{row['workers']:>9}"
                f"{row['error_percent']:>13.4f} %  {row['scaling']}"
            )
        print(f"{len(rows)} rows of 6 columns, each within {MOST:g} %: {met}")
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
