"""How long `paceline predict` takes for ResNet-50, from the command to the answer, the import of torch included."""

import argparse
import json
import statistics
import subprocess
import sys
import time

QUESTIONS = {
    "8 worker counts, 1 to 128": (["--workers", "1,2,4,8,16,32,64,128"], 4.0),
    "8 counts, strong scaling": (["--workers", "1,2,4,8,16,32,64,128", "--scaling", "strong"], 4.0),
    "100,000 workers": (["--workers", "1,100000"], 5.0),
    "8 counts, three codecs": (
        ["--workers", "1,2,4,8,16,32,64,128", "--codec", "half", "--codec", "int8", "--codec", "powersgd"],
        6.0,
    ),
    "8 counts, codec int8": (["--workers", "1,2,4,8,16,32,64,128", "--codec", "int8"], 6.0),
}
"""What is asked, and the limit in seconds."""
COMMON = ["resnet50", "--device", "a100", "--network", "25gbit", "--batch-size", "128"]


def seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    commands = {"import torch": [sys.executable, "-c", "import torch"]} | {
        name: [sys.executable, "-m", "paceline", "predict", *COMMON, *words]
        for name, (words, _) in QUESTIONS.items()
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        seconds(command)
    for _ in range(options.repeats):
        for name, command in commands.items():
            times[name].append(seconds(command))
    limits = {name: limit for name, (_, limit) in QUESTIONS.items()}
    rows = {
        name: {"median": statistics.median(found), "low": min(found), "high": max(found)}
        for name, found in times.items()
    }
    if options.json:
        print(
            json.dumps({"schema": 1, "repeats": options.repeats, "seconds": rows, "limits": limits}, indent=2)
        )
    else:
        print(f"{options.repeats} repeats, interleaved, after one that does not count")
        print(f"{'what':<28}{'median s':>10}{'low':>8}{'high':>8}{'limit':>8}")
        for name, row in rows.items():
            limit = f"{limits[name]:.0f}" if name in limits else "-"
            print(f"{name:<28}{row['median']:>10.2f}{row['low']:>8.2f}{row['high']:>8.2f}{limit:>8}")
    return 3 if any(rows[name]["median"] > limit for name, limit in limits.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
