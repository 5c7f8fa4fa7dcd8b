"""A real Chromium for tests, spoken to over its own pipe (DevTools protocol): no driver and no network is needed.

with Chromium(folder) as browser:
    page = browser.open("file:///run/report.html", width=390, dark=True)
    page.evaluate("document.title"); page.screenshot(path); page.trouble
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

LIMIT = 60.0  # seconds for an answer; a busy machine starts a browser slowly


def program() -> str | None:
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Chromium:
    """One headless browser with a profile of its own in ``folder``; all its processes end with the block."""

    def __init__(self, folder: Path):
        self._folder, self._ids, self._rest, self._events = folder, itertools.count(1), b"", []

    def __enter__(self) -> Chromium:
        (their_in, self._to), (self._from, their_out) = os.pipe(), os.pipe()

        def put_at_3_and_4():
            for number, end in enumerate((os.dup(their_in), os.dup(their_out)), 3):
                os.dup2(end, number)

        self._log = (self._folder / "chromium.log").open("w")
        words = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 f"--user-data-dir={self._folder / 'profile'}")  # fmt: skip
        self._process = subprocess.Popen(
            [program(), *words],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            close_fds=False,
            start_new_session=True,
            preexec_fn=put_at_3_and_4,
            env=os.environ | {"DBUS_SESSION_BUS_ADDRESS": "disabled:", "HOME": str(self._folder)},
        )
        os.close(their_in)
        os.close(their_out)
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self._process.wait(20)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, 9)
            self._process.wait(20)
        finally:
            os.close(self._to)
            os.close(self._from)
            self._log.close()

    def open(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A new page, loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=address)
        page.wait("Page.loadEventFired")
        return page

    def call(self, method: str, session: str | None = None, **params) -> dict:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + LIMIT
        while True:
            answer = self._next(until, method)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]
            self._events.append(answer)

    def events(self, session: str) -> list[dict]:
        return [event for event in self._events if event.get("sessionId") == session]

    def more(self, until: float, what: str) -> None:
        self._events.append(self._next(until, what))

    def _next(self, until: float, what: str) -> dict:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._from, 1 << 20) if ready else b""
            assert data, (
                f"{what}: no answer from Chromium; it said {(self._folder / 'chromium.log').read_text()[-2000:]}"
            )
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class Page:
    def __init__(self, browser: Chromium, session: str):
        self.browser, self.session = browser, session

    def call(self, method: str, **params) -> dict:
        return self.browser.call(method, self.session, **params)

    def wait(self, event: str) -> None:
        until = time.monotonic() + LIMIT
        while all(each["method"] != event for each in self.browser.events(self.session)):
            self.browser.more(until, event)

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    @property
    def trouble(self) -> list[str]:
        """Everything that the console shows: messages, exceptions, refusals of the page's own policy."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(each) for each in self.browser.events(self.session) if each["method"] in kinds]

    @property
    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        asked = (each for each in self.browser.events(self.session) if each["method"] == "Network.requestWillBeSent")
        return [each["params"]["request"]["url"] for each in asked]
