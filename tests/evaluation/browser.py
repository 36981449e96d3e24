"""The tags of a page, and a headless browser driven over the W3C WebDriver protocol.

It needs Chromium and its driver (`apt-get install chromium chromium-driver`), but no Python package.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest

DRIVER = shutil.which("chromedriver")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_FLAGS = [
    *("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--force-device-scale-factor=1"),
    *(["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []),  # root has no sandbox
]
_KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015"}


needs_browser = pytest.mark.skipif(
    not (DRIVER and BROWSER), reason="no chromedriver or no chromium: apt-get install chromium chromium-driver"
)


class Tags(HTMLParser):
    """Every tag of a page with the names of its attributes, and the content of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.inside = [], [], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *sorted(name for name, _ in attrs)))
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.inside.setdefault(self.open[-1], []).append(data)


class Browser:
    """Context manager. Elements are named by CSS selectors. A test is skipped if driver and browser differ in
    version."""

    def __init__(self, *, width: int = 1100, height: int = 800, dark: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._base = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
        flags = [*_FLAGS, f"--user-data-dir={self._folder.name}/user", f"--window-size={width},{height}"]
        options = {"binary": BROWSER, "args": flags}
        capabilities = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        for _ in range(100):
            with contextlib.suppress(OSError):
                self._call("GET", "/status")
                break
            time.sleep(0.1)
        try:
            self._session = "/session/" + self._call("POST", "/session", {"capabilities": capabilities})["sessionId"]
        except RuntimeError as error:
            self._end()
            if "session not created" in str(error):
                pytest.skip(str(error)[:200])
            raise
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", {"features": [scheme]})

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._call("DELETE", self._session)
        self._end()

    def _end(self) -> None:
        self._driver.kill()
        self._driver.wait()
        with contextlib.suppress(OSError):  # a process of the browser may still write there
            self._folder.cleanup()

    def open(self, path: Path) -> None:
        self._call("POST", f"{self._session}/url", {"url": path.absolute().as_uri()})

    def run(self, script: str, *args: object) -> object:
        """Run a script and return its result."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(args)})

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector)

    def count(self, selector: str) -> int:
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def hover(self, selector: str, *then: dict) -> None:
        """Move the pointer to an element. then: further actions of the pointer."""
        script = "const one = document.querySelector(arguments[0]); one.scrollIntoView({block: 'center'}); return one"
        element = self.run(script, selector)
        move = {"type": "pointerMove", "origin": element, "x": 0, "y": 0, "duration": 0}
        self._act({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move, *then]})

    def click(self, selector: str) -> None:
        self.hover(selector, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0})

    def press(self, *names: str) -> None:
        keys = [_KEYS.get(name, name) for name in names]
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keys", "actions": actions})

    def complaints(self) -> list[str]:
        """Return warnings and errors of scripts and policies since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def _devtools(self, command: str, params: dict) -> None:
        self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": params})

    def _act(self, source: dict) -> None:
        self._call("POST", f"{self._session}/actions", {"actions": [source]})

    def _call(self, method: str, path: str, body: dict | None = None):
        raw = None if body is None else json.dumps(body).encode("utf-8")
        request = urllib.request.Request(self._base + path, raw, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.read().decode('utf-8', 'replace')[:600]}") from None
