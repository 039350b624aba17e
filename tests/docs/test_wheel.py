"""The wheel: whatever the package reads at run time is in it, and it says what it needs."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    """If this failed, an installed paceline would miss its catalogue, its pages or its data."""
    here = tmp_path / "source"
    here.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, here)
    shutil.copytree(ROOT / "src", here / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    words = ["wheel", str(here), "--no-deps", "--no-build-isolation", "--quiet", "-w", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, capture_output=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("paceline-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
        entry = next(name for name in there if name.endswith("entry_points.txt"))
        assert "paceline = paceline.cli.main:main" in archive.read(entry).decode()
    package = here / "src" / "paceline"
    wanted = {str(path.relative_to(here / "src")) for path in package.rglob("*") if path.is_file()}
    assert {name for name in wanted if not name.endswith(".py")} >= {
        "paceline/py.typed",
        "paceline/clusters/catalogue.toml",
    }
    assert sorted(wanted - there) == []
