"""How long `import paceline`, help, lists and the refusal of a name take, and which of them import torch.

Each is a whole process, with the start of Python in it, which is shown as well. Exit code 1 where a limit is missed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

MOST = {"import paceline": 0.05, "paceline --help": 0.3}
"""Seconds of the whole process."""
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


def package_imports_torch() -> bool:
    script = "import sys, paceline; paceline.__version__; sys.exit('torch' in sys.modules)"
    return subprocess.run([sys.executable, "-c", script], check=False).returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "import paceline": [sys.executable, "-c", "import paceline"],
        **{f"paceline {words}": [sys.executable, "-m", "paceline", *words.split()] for words in LIGHT},
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        seconds(command)
    for _ in range(options.repeats):
        for name, command in commands.items():
            times[name].append(seconds(command))
    torch = [words for words in LIGHT if imports_torch(words)]
    torch += ["import paceline"] if package_imports_torch() else []
    rows = {
        name: {"median": statistics.median(values), "low": min(values), "high": max(values)}
        for name, values in times.items()
    }
    missed = [name for name, most in MOST.items() if rows[name]["median"] >= most] + torch
    if options.json:
        document = {"schema": 1, "repeats": options.repeats, "seconds": rows, "imports_torch": torch}
        print(json.dumps({**document, "missed": missed}))
        return 1 if missed else 0
    limits = ", ".join(f"{name} {most:g} s" for name, most in MOST.items())
    print(f"{options.repeats} repeats, interleaved; limits: {limits}; import torch: {torch or 'none'}")
    print(f"{'command':<32}{'median s':>10}{'low':>8}{'high':>8}")
    for name, row in rows.items():
        print(f"{name:<32}{row['median']:>10.3f}{row['low']:>8.3f}{row['high']:>8.3f}")
    print(f"missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
