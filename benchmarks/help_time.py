"""How long help, lists and the refusal of a name take, beside a bare interpreter, and which of them import torch."""

import argparse
import json
import statistics
import subprocess
import sys
import time

LIGHT = ("--help", "train --help", "strategies", "models", "explain ring", "train --strategy spp")


def seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def imports_torch(words: str) -> bool:
    script = (
        f"import sys, paceline.cli.main as m; m.main({words.split()!r}); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    return done.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    commands = {
        "python": [sys.executable, "-c", "pass"],
        **{f"paceline {words}": [sys.executable, "-m", "paceline", *words.split()] for words in LIGHT},
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        seconds(command)
    for _ in range(options.repeats):
        for name, command in commands.items():
            times[name].append(seconds(command))
    torch = [words for words in LIGHT if imports_torch(words)]
    rows = {
        name: {"median": statistics.median(values), "low": min(values), "high": max(values)}
        for name, values in times.items()
    }
    if options.json:
        print(json.dumps({"schema": 1, "repeats": options.repeats, "seconds": rows, "imports_torch": torch}))
        return
    print(f"{options.repeats} repeats, interleaved; limit for --help 0.3 s; import torch: {torch or 'none'}")
    print(f"{'command':<32}{'median s':>10}{'low':>8}{'high':>8}")
    for name, row in rows.items():
        print(f"{name:<32}{row['median']:>10.3f}{row['low']:>8.3f}{row['high']:>8.3f}")


if __name__ == "__main__":
    main()
