"""A headless Chromium, controlled through chromedriver (W3C WebDriver)."""

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
NOT_INSTALLED = "chromium and chromedriver are not installed"
in_a_browser = pytest.mark.skipif(  # .ci/run sets NEEDS_BROWSER: the tests then fail instead
    not (CHROMIUM and DRIVER) and "NEEDS_BROWSER" not in os.environ, reason=NOT_INSTALLED
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)


class Browser:
    def __init__(self, port):
        self.at = f"http://127.0.0.1:{port}"

    def ask(self, path, body=None, method="POST"):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.at + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def open(self, folder, dark=False, size=(1200, 900)):
        flags = [*FLAGS, f"--user-data-dir={folder}", f"--window-size={size[0]},{size[1]}"]
        requested = {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": flags, "binary": CHROMIUM},
        }
        session = self.ask("/session", {"capabilities": {"alwaysMatch": requested}})
        self.at += f"/session/{session['sessionId']}"
        media = {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        }
        self.command("Emulation.setEmulatedMedia", media)
        view = {
            "width": size[0],
            "height": size[1],
            "deviceScaleFactor": 1,
            "mobile": False,
        }  # real windows are at least 500 wide
        self.command("Emulation.setDeviceMetricsOverride", view)
        return self

    def command(self, name, params):
        return self.ask("/goog/cdp/execute", {"cmd": name, "params": params})

    def show(self, path):
        """Open a file or an address and wait until it is loaded."""
        self.ask("/url", {"url": path if isinstance(path, str) else path.resolve().as_uri()})

    def key(self, name, kind):
        """Press (keyDown) or release (keyUp) a key."""
        self.command("Input.dispatchKeyEvent", {"type": kind, "key": name, "code": name})

    def touch(self, *places):
        """Touch the page at places (x, y), in CSS pixels; without a place, release it."""
        points = [{"x": x, "y": y} for x, y in places]
        kind = "touchStart" if points else "touchEnd"
        self.command("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def mouse(self, kind, x, y):
        """Press (mousePressed), move (mouseMoved) or release (mouseReleased) the left button."""
        self.command(
            "Input.dispatchMouseEvent",
            {"type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1},
        )

    def run(self, script):
        """Return the result of a script."""
        return self.ask("/execute/sync", {"script": script, "args": []})

    def errors(self):
        lines = self.ask("/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] == "SEVERE"]

    def wait_for(self, script, seconds=20):
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"never: {script}; {self.errors()}"
            time.sleep(0.05)
        return value

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.ask("/screenshot", method="GET")))


@contextlib.contextmanager
def browser(folder, **options):
    """Start a browser with a new profile, and end it after the block."""
    assert None not in (CHROMIUM, DRIVER), NOT_INSTALLED
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    opened = Browser(port)
    try:
        for _ in range(200):
            with contextlib.suppress(urllib.error.URLError):
                opened.ask("/status", method="GET")
                break
            time.sleep(0.05)
        yield opened.open(folder, **options)
    finally:
        with contextlib.suppress(urllib.error.URLError):
            opened.ask("", method="DELETE")
        process.terminate()
        process.wait()
