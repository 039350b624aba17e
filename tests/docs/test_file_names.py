"""A page that names a file of the package names one that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "paceline"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/walks/*.md")]
FOLDERS = "cli|reports|studies|runtimes|strategies|costs|collectives|codecs|clusters|jobs|records|shm|launcher|worker|server|wire"
FILE = re.compile(rf"`(?:src/paceline/)?((?:{FOLDERS})/[a-z_/]+\.py)`")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.stem
)
def test_every_file_that_a_page_names_is_there(page):
    places = (PACKAGE, PACKAGE / "runtimes" / "live")
    missing = [
        name for name in FILE.findall(page.read_text()) if not any((at / name).exists() for at in places)
    ]
    assert missing == []
