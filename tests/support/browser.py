"""A headless Chromium that tests drive by the DevTools protocol, through two pipes: no driver and no port is needed.

The page's console, its errors, its dialogs and its requests are recorded.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LONGEST_S = 60
"""Seconds in which the browser must answer. Machines are shared."""


class Browser:
    """One page of a browser."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = commands, answers
        self._received, self._session, self._last = b"", "", 0
        self.requests: list[str] = []
        """Addresses of all requests of the page."""
        self.complaints: list[str] = []
        """Errors and warnings of the console, exceptions, violations of the policy, and dialogs."""
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._last += 1
        number = self._last
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        """Return the next message, after recording it if it is an event."""
        deadline = time.monotonic() + LONGEST_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            block = os.read(self._answers, 1 << 20)
            assert block, "the browser has ended"
            self._received += block
        message, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        self._record(found.get("method", ""), found.get("params", {}))
        return found

    def _record(self, event: str, about: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Log.entryAdded" and about["entry"]["level"] != "verbose":
            self.complaints.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(about["args"]))
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        elif event == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {about['message']}")

    def open(self, page: Path | str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Open a page, and wait until it is loaded."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._loaded = False
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not self._loaded:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true in the page, and return its value."""
        deadline = time.monotonic() + LONGEST_S
        while not (found := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)
        return found

    def press(self, key: str) -> None:
        """Press a key, such as "Enter", "Tab" or "ArrowRight"."""
        code = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}[key]
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def click(self, selector: str) -> None:
        """Click the middle of an element with the pointer."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center',"
            " behavior: 'instant'}); const b = e.getBoundingClientRect();"
            " return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def type(self, text: str) -> None:
        """Type a text into the focused element."""
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, path: Path) -> None:
        """Choose a file, or a folder, in an input of files."""
        expression = f"document.querySelector({json.dumps(selector)})"
        chooser = self.call("Runtime.evaluate", expression=expression)["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=chooser)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture, PNG or WebP, of the visible part of the page, or of the whole page."""
        area = {}
        if whole:  # of this page: Chromium remembers the height of the one before
            width, height = self.evaluate("[innerWidth, Math.ceil(document.body.getBoundingClientRect().bottom)]")
            area = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        picture = self.call("Page.captureScreenshot", format=path.suffix[1:], captureBeyondViewport=whole, **area)
        path.write_bytes(base64.b64decode(picture["data"]))

    def pdf(self) -> bytes:
        """Return the page as printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextlib.contextmanager
def browser(*flags: str) -> Iterator[Browser]:
    """Start a browser with a fresh profile and these flags of Chromium, and end it with all its processes."""
    assert CHROMIUM
    commands, answers = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="voxbatch-chromium-", ignore_cleanup_errors=True) as profile:
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            "--autoplay-policy=no-user-gesture-required", f"--user-data-dir={profile}", "--remote-debugging-pipe",
            *flags,
        ]  # fmt: skip
        # Chromium reads its commands from the descriptor 3 and answers on 4.
        shell = f'exec 3<&{commands[0]} 4>&{answers[1]}; exec "$@"'
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", str(CHROMIUM), *arguments],
            pass_fds=(commands[0], answers[1]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(commands[0])
        os.close(answers[1])
        try:
            yield Browser(commands[1], answers[0])
        finally:
            os.close(commands[1])  # the browser ends when its pipe closes
            os.close(answers[0])
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
