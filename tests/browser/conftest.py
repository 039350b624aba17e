"""A browser for tests; where there is none, they are skipped and say so."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-prefers-reduced-motion",
    "--window-size=1280,1000",
)
KEYS = {"left": Keys.LEFT, "right": Keys.RIGHT, "home": Keys.HOME, "end": Keys.END, "space": Keys.SPACE}


class Browser:
    """One window, in the words of the tests."""

    def __init__(self, chrome: Chrome) -> None:
        self.chrome = chrome
        self.run = chrome.execute_script

    def visit(self, page: Path) -> None:
        self.chrome.get(page.resolve().as_uri())

    def show(self, width: int, height: int = 1000, scheme: str = "light") -> None:
        """A screen of this size, in CSS pixels, for somebody who likes light or dark pages."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def click(self, selector: str) -> None:
        """Click where a user would; something that lies on top is an error."""
        self.chrome.find_element(By.CSS_SELECTOR, selector).click()

    def press(self, key: str) -> None:
        """Press a key, wherever the focus is."""
        ActionChains(self.chrome).send_keys(KEYS[key]).perform()

    def errors(self) -> list[str]:
        """What the console complained about since the last time."""
        log: list[dict[str, Any]] = self.chrome.get_log("browser")
        return [entry["message"] for entry in log if entry["level"] in ("WARNING", "SEVERE")]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A fresh window with a fresh profile."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        pytest.skip("no chromium and chromedriver here (Debian: apt-get install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    chrome = Chrome(options=options, service=ChromeService(driver))
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()
