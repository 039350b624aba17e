"""A browser for tests; where there is none, they are skipped and say so."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from webdriver import Browser

from ports import free_ports


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A fresh window with a fresh profile."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        pytest.skip("no chromium and chromedriver here (Debian: apt-get install chromium chromium-driver)")
    (port,) = free_ports(1)
    with closing(Browser(driver, chromium, tmp_path / "profile", port)) as window:
        yield window
