"""How long 100 rounds of 10 of 1,000 federated clients take, with true gradients, and how much memory.

Runs ``paceline simulate`` on the digits in a process of its own, as a user would, and measures that process: wall time
with the start of Python and torch, and the most memory that it held. Exit code 3 where a figure is missed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

MOST_SECONDS, MOST_BYTES = 60.0, 2e9
ROUNDS = 100
"""At least. A client of the digits has one or two samples, so each worker takes one step a round."""


def measure(options: argparse.Namespace) -> dict[str, float]:
    spec = f"fedavg:clients={options.clients},sample={options.sample}{options.more}"
    words = ["--strategy", spec, "--model", options.model, "--workers", str(options.workers)]
    words += ["--iterations", str(options.iterations), "--json"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline", "simulate", *words, "--runs", folder]
        begun = time.perf_counter()
        out = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        seconds = time.perf_counter() - begun
    summary = json.loads(out.stdout)["summary"]
    return {
        "seconds": seconds,
        "bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "rounds": summary["totals"][0]["steps"],
        "accuracy": summary["final"]["accuracy"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=10)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=150, help="of one sample a worker: 1.04 epochs")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--more", default="", help="further settings of the strategy, such as ',alpha=0.1'")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    in_time = found["seconds"] <= MOST_SECONDS and found["bytes"] <= MOST_BYTES
    met = in_time and found["rounds"] >= ROUNDS
    if options.json:
        limits = {"seconds": MOST_SECONDS, "bytes": MOST_BYTES, "rounds": ROUNDS}
        print(json.dumps({"schema": 1, "settings": vars(options), "limits": limits, **found, "met": met}))
    else:
        print(
            f"digits, {options.model}, {options.clients:,} clients, rounds of {options.sample} on {options.workers} "
            "virtual workers"
        )
        print(f"rounds       {found['rounds']:8,}       at least {ROUNDS}, accuracy {found['accuracy']:.3f}")
        print(f"wall time    {found['seconds']:8.1f} s     at most {MOST_SECONDS:g} s")
        print(f"peak memory  {found['bytes'] / 1e6:8.0f} MB    at most {MOST_BYTES / 1e6:g} MB")
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
