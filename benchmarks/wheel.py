"""An installed wheel in an empty folder: it builds, installs and works without the repository.

Builds the wheel, installs it into a folder of its own, which comes before the repository's package, and runs the
command and the API from an empty folder. Each row is what was run, whether it worked, and how long it took.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TYPED = """
import paceline
assert paceline.__file__.startswith({there!r}), paceline.__file__
run = paceline.train(workers=2, model="mlp", epochs=1, show=False)
print(paceline.compare(run, paceline.simulate(model="mlp", epochs=1)))
"""


def trials(there: Path) -> list[tuple[str, list[str]]]:
    paceline = str(there / "bin" / "paceline")
    where = f"import paceline; assert paceline.__file__.startswith({str(there)!r})"
    return [
        ("import paceline", [sys.executable, "-c", where]),
        ("paceline --version", [paceline, "--version"]),
        ("python -m paceline --version", [sys.executable, "-m", "paceline", "--version"]),
        (
            "paceline predict resnet50",
            [paceline, "predict", "resnet50", "--device", "a100", "--workers", "1,8"],
        ),
        ("paceline train --report", [paceline, "train", "--epochs", "2", "--report"]),
        ("train and compare from Python", [sys.executable, "-c", TYPED.format(there=str(there))]),
    ]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="paceline-wheel-") as folder:
        base = Path(folder)
        there, empty = base / "installed", base / "empty"
        empty.mkdir()
        source = base / "source"
        shutil.copytree(
            ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
        for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
            shutil.copy(ROOT / name, source)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run(
            [*pip, "wheel", str(source), "--no-deps", "--no-build-isolation", "-w", folder],
            check=True,
            cwd=base,
        )
        (wheel,) = base.glob("paceline-*.whl")
        subprocess.run(
            [*pip, "install", "--no-deps", "--target", str(there), str(wheel)], check=True, cwd=base
        )
        print(f"{wheel.name}: {wheel.stat().st_size / 1e3:,.0f} kB")
        missed = 0
        for name, command in trials(there):
            begun = time.monotonic()
            done = subprocess.run(
                command,
                cwd=empty,
                env={**os.environ, "PYTHONPATH": str(there)},
                capture_output=True,
                text=True,
                check=False,
            )
            print(f"{name:32} {'ok' if done.returncode == 0 else 'FAILED'} {time.monotonic() - begun:6.1f} s")
            if done.returncode:
                missed += 1
                print(done.stdout, done.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
