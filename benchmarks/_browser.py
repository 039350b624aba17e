"""A headless Chromium for pages of the report: opened as a user of a desktop or a phone would see them."""

import base64
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
)
PHONE = 600
"""Pixels of a screen below which it is a phone's."""


@contextmanager
def browser(profile: Path) -> Iterator[Chrome]:
    """One window, with its profile in a folder that is made."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        sys.exit("no chromium and chromedriver here (Debian: apt-get install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    chrome = Chrome(options=options, service=ChromeService(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def show(chrome: Chrome, width: int, height: int, scheme: str = "light", scale: float = 1.0) -> None:
    """A screen of this size, in CSS pixels, for somebody who likes light or dark pages."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < PHONE}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def until(chrome: Chrome, script: str, passes: Callable[[Any], bool], seconds: float = 30.0) -> bool:
    """Whether what a script returns passes within so many seconds."""
    limit = time.perf_counter() + seconds
    while not passes(chrome.execute_script(script)):
        if time.perf_counter() > limit:
            return False
        time.sleep(0.005)
    return True


def open_report(chrome: Chrome, page: Path) -> bool:
    """Whether all charts of a page are drawn within half a minute."""
    chrome.get(page.resolve().as_uri())
    return until(chrome, "return document.body.dataset.drawn", lambda found: found == "all")


def picture(
    chrome: Chrome, file: Path, selector: str = "", height: float | None = None, margin: int = 0
) -> None:
    """A PNG of what is seen of an element, or of the page, from its top; not higher than so many pixels."""
    box: dict[str, float] = chrome.execute_script(
        "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height}",
        selector or "html",
    )
    clip = {
        "x": box["x"] - margin,
        "y": box["y"] - margin,
        "width": box["width"] + 2 * margin,
        "height": min(height or box["height"], box["height"]) + 2 * margin,
        "scale": 1,
    }
    words = {"format": "png", "clip": clip, "captureBeyondViewport": True}
    found = chrome.execute_cdp_cmd("Page.captureScreenshot", words)
    file.write_bytes(base64.b64decode(found["data"]))
