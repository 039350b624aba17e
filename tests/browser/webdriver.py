"""A real browser, driven over plain WebDriver HTTP: chromedriver on a free port, one session, nothing left behind."""

import base64
import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import psutil

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
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"left": "\ue012", "right": "\ue014", "home": "\ue011", "end": "\ue010", "space": " ", "tab": "\ue004"}


class Browser:
    """One window. Close it: the driver and all that it started end with it."""

    def __init__(self, driver: str, chromium: str, profile: Path, port: int, *flags: str) -> None:
        self._process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._base = f"http://127.0.0.1:{port}"
        self._open = build_opener(ProxyHandler({})).open
        self._session = ""
        try:
            self._wait_ready()
            options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}", *flags]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/session/{made['sessionId']}"
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session, the driver and whatever is still there of the browser."""
        family = psutil.Process(self._process.pid).children(recursive=True)
        if self._session:
            with suppress(OSError):
                self._call("DELETE", self._session)
        self._process.terminate()
        self._process.wait(timeout=10)
        _, alive = psutil.wait_procs(family, timeout=5)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=5)

    def visit(self, page: Path) -> None:
        """Open a file as a user would, from its folder."""
        self._call("POST", f"{self._session}/url", {"url": page.resolve().as_uri()})

    def show(self, width: int, height: int = 1000, scheme: str = "light") -> None:
        """A screen of this size, in CSS pixels, for somebody who likes light or dark pages."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        for name, values in (("setDeviceMetricsOverride", size), ("setEmulatedMedia", media)):
            command = {"cmd": f"Emulation.{name}", "params": values}
            self._call("POST", f"{self._session}/goog/cdp/execute", command)

    def run(self, script: str) -> Any:
        """What a script on the page returns."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def click(self, selector: str) -> None:
        """Click where a user would; something that lies on top is an error."""
        found = self._call("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        self._call("POST", f"{self._session}/element/{found[ELEMENT]}/click", {})

    def press(self, *names: str) -> None:
        """Press keys, wherever the focus is."""
        strokes = [{"type": kind, "value": KEYS[name]} for name in names for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": strokes}]
        self._call("POST", f"{self._session}/actions", {"actions": actions})

    def errors(self) -> list[str]:
        """What the console complained about since the last time."""
        log = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("WARNING", "SEVERE")]

    def picture(self) -> bytes:
        """The window as a PNG."""
        return base64.b64decode(self._call("GET", f"{self._session}/screenshot"))

    def _wait_ready(self) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with suppress(URLError, ConnectionError):
                if self._call("GET", "/status")["ready"]:
                    return
            time.sleep(0.05)
        raise AssertionError("chromedriver did not come up within 20 s")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with self._open(request, timeout=30) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            raise AssertionError(error.read().decode()) from error
