"""Whether bytes predicted are bytes counted: every codec with every strategy, live, on this host.

Each run is ``paceline train``, which writes down before the first step what a worker will send in one; its record says
what each worker has sent. What is recorded is what crosses the sockets (``tests/live/test_codecs_live.py``). Where the
data decide the length of a message (``threshold``), the two are shown and not judged.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.codecs import CODECS, build_codec
from paceline.strategies import STRATEGIES, build_strategy

CODECS_SHOWN = (
    *sorted(CODECS.keys() - {"identity"}),
    *("int8:bits=3", "top-k:ratio=0.05", "top-k:ratio=0.6", "top-k:ratio=0.05+half", "powersgd:rank=2+half"),
)
PERIOD = 4
STEPS = 6 * PERIOD
OPTIONS = (
    f"--optimizer sgd:lr=0.01,momentum=0 --iterations {STEPS} --evaluate-every never --checkpoint-every never"
)


def strategies() -> list[str]:
    """Every strategy that ships; where workers average now and then, they do so several times in a run."""
    return [f"{name}:period={PERIOD}" if "sgd" in name else name for name in sorted(STRATEGIES)]


def measure(strategy: str, codec: str, workers: int, runs: Path) -> dict[str, Any] | None:
    """None where the two do not go together, which ``train`` refuses."""
    command = [sys.executable, "-m", "paceline", "train", *OPTIONS.split(), "--workers", str(workers)]
    command += ["--strategy", strategy, "--codec", codec, "--runs", str(runs), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 2 and f"codec {codec!r}" in done.stderr:
        return None
    done.check_returncode()
    document = json.loads(done.stdout)
    written = json.loads((Path(document["run"]["folder"]) / "prediction.json").read_text())
    predicted = next(step["sent"] for step in written["comparison"]["steps"] if step["codec"] != "identity")
    totals = document["summary"]["totals"]
    counted = [total["step_sent"] / total["steps"] for total in totals]
    return {
        "strategy": strategy,
        "codec": codec,
        "workers": workers,
        "predicted": predicted,
        "counted": counted,
        "judged": not build_codec(codec).varies,
        "equal": all(abs(predicted - one) < 1e-6 * predicted for one in counted),
    }


def compare(asked: Sequence[str], codecs: Sequence[str], runs: Path) -> Iterator[dict[str, Any]]:
    for strategy in asked:
        for codec in codecs:
            for workers in (2,) if build_strategy(strategy).served else (2, 3):
                row = measure(strategy, codec, workers, runs)
                if row is not None:
                    print(
                        f"{strategy:22}{codec:24}{workers:3}{row['predicted']:12,.1f}{row['counted'][0]:12,.1f}"
                        f"{'' if row['equal'] else '  DIFFER' if row['judged'] else '  the data decide'}",
                        file=sys.stderr,
                    )
                    yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", action="append", help="may be repeated; all by default")
    parser.add_argument("--codec", action="append", help="may be repeated; all by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as runs:
        rows = list(compare(options.strategy or strategies(), options.codec or CODECS_SHOWN, Path(runs)))
    judged = [row for row in rows if row["judged"]]
    equal = sum(row["equal"] for row in judged)
    if options.json:
        print(json.dumps({"schema": 1, "rows": rows, "judged": len(judged), "equal": equal}, indent=2))
    else:
        print(
            f"bytes predicted are bytes counted in {equal} of {len(judged)} pairs of a codec and a strategy"
        )
    return 0 if equal == len(judged) else 3


if __name__ == "__main__":
    sys.exit(main())
