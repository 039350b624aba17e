"""How long `paceline --help` takes, beside a bare interpreter, and whether it imports torch."""

import argparse
import json
import statistics
import subprocess
import sys
import time


def seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "paceline --help": [sys.executable, "-m", "paceline", "--help"],
        "paceline train --help": [sys.executable, "-m", "paceline", "train", "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        seconds(command)
    for _ in range(options.repeats):
        for name, command in commands.items():
            times[name].append(seconds(command))
    modules = "import sys, paceline.cli.main as m; m.main(['--help']); print('torch' in sys.modules, file=sys.stderr)"
    torch = subprocess.run(
        [sys.executable, "-c", modules], capture_output=True, text=True, check=True
    ).stderr.strip()
    rows = {
        name: {"median": statistics.median(values), "low": min(values), "high": max(values)}
        for name, values in times.items()
    }
    if options.json:
        print(
            json.dumps(
                {"schema": 1, "repeats": options.repeats, "seconds": rows, "imports_torch": torch == "True"}
            )
        )
        return
    print(
        f"{options.repeats} repeats, interleaved; the limit for `paceline --help` is 0.3 s; imports torch: {torch}"
    )
    print(f"{'command':<24}{'median s':>10}{'low':>8}{'high':>8}")
    for name, row in rows.items():
        print(f"{name:<24}{row['median']:>10.3f}{row['low']:>8.3f}{row['high']:>8.3f}")


if __name__ == "__main__":
    main()
