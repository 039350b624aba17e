"""The synchronous parameter server on links shaped to 1 Gbit/s: predicted steps against measured ones. Needs root.

The server and each worker have a network namespace of their own, behind a switch. They share no memory, so
everything goes over the links; every cable is shaped in both directions by tc's token bucket. One worker alone is
timed first, for what computing takes. From that and the link's rate all predictions are made and written down; only
then is anything measured. A step is the median time from one update of the server to the next, in both records.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from collectives_predicted import BURST, RATE, hosts

MOST = 15.0
"""Per cent by which a prediction may be wrong."""
PAYLOAD = 1448 / 1514
"""What TCP carries of an Ethernet packet."""
LATENCY = "100 us"
ADDRESS = "10.79.0.2"
"""The host of worker 0, where all meet."""
PACELINE = (sys.executable, "-m", "paceline")


def job(options: argparse.Namespace) -> list[str]:
    words = ["--data", "digits", "--model", f"mlp:hidden={options.hidden},layers=2"]
    words += ["--batch-size", str(options.batch_size), "--iterations", str(options.steps)]
    return [*words, "--evaluate-every", "never", "--checkpoint-every", "never"]


def run(command: list[str], runs: Path, **more: Any) -> Path:
    """The folder of a run that has ended well."""
    out = subprocess.run(
        [*PACELINE, *command, "--runs", str(runs), "--json"], stdout=subprocess.PIPE, check=True, **more
    )
    return Path(json.loads(out.stdout)["run"]["folder"])


def cluster(workers: int) -> str:
    rate = f'bandwidth = "{PAYLOAD:.4f} Gbit/s"\nlatency = "{LATENCY}"\n'
    keeper = f'[[hosts]]\nname = "keeper"\nworkers = 0\nservers = 1\n{rate}'
    return f"[[hosts]]\ncount = {workers}\n{rate}\n{keeper}"


def predict(alone: Path, workers: int, runs: Path, options: argparse.Namespace) -> float:
    """Seconds a step, from one worker's times and the link."""
    described = runs / f"{workers}.toml"
    described.write_text(cluster(workers))
    where = ["--cluster", str(described), "--times", str(alone), "--no-gradients"]
    return step_of(run(["simulate", "--strategy", "ps", *job(options), *where], runs))


def step_of(folder: Path) -> float:
    """The median time between updates; the first few are warm-up."""
    lines = (folder / "events" / "server-0.jsonl").read_text().splitlines()
    updates = [entry["at"] for entry in map(json.loads, lines) if "update" in entry][3:]
    return float(statistics.median(later - earlier for earlier, later in pairwise(updates)))


def start(host: str, number: int, workers: int, command: list[str]) -> "subprocess.Popen[str]":
    """Number 0 is the server's host; processes in different network namespaces share no memory."""
    inside = 'hostname "host-$RANK"; exec "$@"'
    place = {"RANK": number, "WORLD_SIZE": workers + 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    place |= {"GROUP_RANK": number, "GROUP_WORLD_SIZE": workers + 1}
    variables = {name: str(value) for name, value in place.items()}
    variables |= {"MASTER_ADDR": ADDRESS, "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}
    outside = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", inside, "sh"]
    return subprocess.Popen(
        [*outside, *command], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    )


def measure(workers: int, runs: Path, options: argparse.Namespace) -> float:
    """Seconds a step on namespaces."""
    secret = runs / "secret"
    secret.write_text(os.urandom(32).hex())
    command = [
        *PACELINE,
        "train",
        "--strategy",
        "ps",
        "--servers",
        "1",
        "--secret-file",
        str(secret),
        "--json",
    ]
    command += [*job(options), "--runs", str(runs), "--name", f"measured-{workers}", "--threads", "1"]
    with hosts(workers + 1) as names:
        crew = [start(name, number, workers, command) for number, name in enumerate(names)]
        try:
            said = [one.communicate(timeout=300)[0] for one in crew]
        finally:
            for one in crew:
                if one.poll() is None:
                    one.send_signal(signal.SIGTERM)
                    one.wait()
    assert not any(one.returncode for one in crew), f"exit codes {[one.returncode for one in crew]}"
    return step_of(Path(next(json.loads(text)["run"]["folder"] for text in said if text.strip())))


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    counts = options.workers or [1, 2, 4]
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        alone = run(["train", "--strategy", "all-reduce", "--workers", "1", *job(options)], runs)
        predictions = {count: predict(alone, count, runs, options) for count in counts}
        (runs / "prediction.json").write_text(json.dumps({"made": time.time(), "seconds": predictions}))
        rows = []
        for count in counts:
            measured, predicted = measure(count, runs, options), predictions[count]
            error = 100 * (predicted / measured - 1)
            rows.append(
                {
                    "workers": count,
                    "predicted_ms": 1e3 * predicted,
                    "measured_ms": 1e3 * measured,
                    "error_percent": error,
                    "met": abs(error) <= MOST,
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, action="append", help="1, 2 and 4 by default")
    parser.add_argument("--hidden", type=int, default=960, help="units of two layers; 960 are about 4 MB")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("tc") or not shutil.which("ip"):
        print("needs root, ip and tc: not measured", file=sys.stderr)
        return 0
    for signum in (
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # a terminal that goes away must not leave namespaces behind
        signal.signal(signum, signal.default_int_handler)
    rows = compare(options)
    echo = {name: getattr(options, name) for name in ("hidden", "batch_size", "steps")}
    if options.json:
        print(
            json.dumps(
                {"schema": 1, "most": MOST, "link": RATE, "burst": BURST, **echo, "rows": rows}, indent=2
            )
        )
    else:
        print(f"ps on links of {RATE} by tbf, burst {BURST}; {echo}; a prediction may be {MOST:g} % wrong")
        print(f"{'workers':>7}{'predicted ms':>14}{'measured ms':>13}{'error':>9}")
        for one in rows:
            print(
                f"{one['workers']:>7}{one['predicted_ms']:>14.2f}{one['measured_ms']:>13.2f}"
                f"{one['error_percent']:>+8.1f} %  {'' if one['met'] else 'MISSED'}"
            )
    return 0 if all(one["met"] for one in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
