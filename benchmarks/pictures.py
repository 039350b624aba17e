"""The README's pictures, made from real runs on this machine: the report, its timeline, and the chart of a sweep.

The machine is calibrated, so that what is shown beside the measured was predicted. Then two workers train, one of them
slowed down, which the report's findings name; and 'paceline bench scaling' sweeps batch sizes. Pages are opened in a
headless Chromium and photographed, in light and in dark. With --out the profile, the run and the sweep are kept, and a
second time only what is missing is made. Exit code 3 where a file is larger than a page of documentation should load.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _browser import browser, open_report, picture, show

LARGEST = 200_000
"""Bytes of a picture."""
TRAIN = ("train", "--slow", "1=2.5", "--epochs", "25", "--checkpoint-every", "10 epochs", "--name", "uneven")
SWEEP = ("bench", "scaling", "--workers", "1,2", "--batch-size", "8,16,32,64,128")
WIDTH, SCALE = 1100, 1.1
"""CSS pixels of the window, and pixels of a picture to each."""
LAST = "return document.querySelector('section:nth-of-type(2)').getBoundingClientRect().bottom + scrollY"
"""Where the report's picture ends: below its curves."""


def paceline(home: Path, *words: str) -> None:
    """Run a command in a folder; its profile of the machine is in there too."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *words],
        cwd=home,
        env={**os.environ, "XDG_CACHE_HOME": str(home / "cache"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"'paceline {' '.join(words)}' ended with {done.returncode}:\n{done.stderr}")


def only(home: Path, pattern: str, words: Sequence[str]) -> Path:
    """The last file that a command makes; it is run, or goes on, where that is not there yet."""
    if not list(home.glob(pattern)):
        print(f"paceline {' '.join(words)}", file=sys.stderr)
        paceline(home, *words)
    (found,) = home.glob(pattern)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibrate", type=float, default=60.0, help="seconds to measure computing")
    parser.add_argument("--seconds", type=float, default=2.0, help="of training in each run of the sweep")
    parser.add_argument("--out", type=Path, help="keep the profile, the run and the sweep here")
    parser.add_argument("--pictures", type=Path, help="where they are kept, such as docs/pictures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        pictures = options.pictures or Path(name) / "pictures"
        pictures.mkdir(exist_ok=True)
        home = (options.out or Path(name)).absolute()
        home.mkdir(exist_ok=True)
        only(home, "cache/paceline/profile-*", ("calibrate", "machine", "--seconds", str(options.calibrate)))
        run = only(home, "runs/*-uneven-*/summary.json", TRAIN).parent
        chart = only(home, "sweeps/*/chart.svg", (*SWEEP, "--seconds", str(options.seconds)))
        paceline(home, "report", str(run))
        shutil.copy(chart, pictures / "scaling.svg")
        with browser(Path(name) / "chromium") as chrome:
            for scheme in ("light", "dark"):
                show(chrome, WIDTH, 900, scheme, SCALE)
                if not open_report(chrome, run / "report.html"):
                    sys.exit("the report's charts are not drawn")
                picture(chrome, pictures / f"report-{scheme}.png", "html", chrome.execute_script(LAST) + 12)
                timeline = "section:has(#timeline)"
                picture(chrome, pictures / f"timeline-{scheme}.png", timeline, margin=8)
        large = 0
        for file in sorted(pictures.iterdir()):
            size = file.stat().st_size
            large += size > LARGEST
            print(f"{file.name}: {size / 1000:.0f} kB{' (too large)' if size > LARGEST else ''}")
    return 3 if large else 0


if __name__ == "__main__":
    sys.exit(main())
