"""A page that names a file of the package names one that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "paceline"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/walks/*.md")]
PLACES = (PACKAGE, PACKAGE / "runtimes" / "live")
FOLDERS = "|".join(folder.name for place in PLACES for folder in place.iterdir() if folder.is_dir())
FILE = re.compile(rf"`(?:src/paceline/)?((?:{FOLDERS})/[a-z_/]+\.py)`")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.stem
)
def test_every_file_that_a_page_names_is_there(page):
    missing = [
        name for name in FILE.findall(page.read_text()) if not any((at / name).exists() for at in PLACES)
    ]
    assert missing == []
