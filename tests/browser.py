"""A real browser for tests, without a window: Chromium, driven by its own WebDriver."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.request
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.servers import NoServer, Server, environment, free_port

MADE = Path(__file__).parents[1] / ".venv/chromium"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""How the protocol calls an element's id."""


def programs() -> tuple[str, str]:
    """The driver and the browser: installed, or unpacked from Debian's packages by `make`."""
    places = os.pathsep.join(
        [os.environ.get("PATH", os.defpath), str(MADE / "usr/bin"), str(MADE / "usr/lib/chromium")]
    )
    driver = shutil.which("chromedriver", path=places)
    for folder in (Path("/usr/lib/chromium"), MADE / "usr/lib/chromium"):
        browser = folder / "chromium"
        if driver and browser.exists():
            return driver, str(browser)
    raise NoServer("no browser here: install chromium and chromium-driver")


class Browser(Server):
    """A browser with one page, and without a network. What it looks for it waits for.

    browser.open(f"{web}/admin/")
    browser.type("#id_username", "root")
    browser.click("input[type=submit]")
    assert "Welcome" in browser.text("#user-tools")
    """

    start_seconds = 120.0

    def __init__(self) -> None:
        self._driver, self._browser = programs()
        self._session = ""
        super().__init__("browser")
        words = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1300,700",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        ]
        options = {"binary": self._browser, "args": [*words, f"--user-data-dir={self._directory}/profile"]}
        made = self._ask("POST", "", capabilities={"alwaysMatch": {"goog:chromeOptions": options}})
        self._session = f"/{made['sessionId']}"
        self._ask("POST", "/timeouts", implicit=60_000, pageLoad=120_000)

    def open(self, url: str) -> None:
        self._ask("POST", "/url", url=url)

    def text(self, css: str = "body") -> str:
        """The visible text of the first element that fits."""
        return str(self._ask("GET", f"{self._find(css)}/text"))

    def texts(self, css: str) -> list[str]:
        """The visible texts of all that fit, at least one."""
        self._find(css)
        found = self._ask("POST", "/elements", using="css selector", value=css)
        return [str(self._ask("GET", f"/element/{one[ELEMENT]}/text")) for one in found]

    def click(self, css: str) -> None:
        self._ask("POST", f"{self._find(css)}/click")

    def type(self, css: str, text: str) -> None:
        self._ask("POST", f"{self._find(css)}/value", text=text)

    def run(self, script: str) -> Any:
        """Run a function body of JavaScript in the page, and return its result."""
        return self._ask("POST", "/execute/sync", script=script, args=[])

    def screenshot(self, file: Path) -> None:
        file.write_bytes(b64decode(self._ask("GET", "/screenshot")))

    def _find(self, css: str) -> str:
        found = self._ask("POST", "/element", using="css selector", value=css)
        return f"/element/{found[ELEMENT]}"

    def _ask(self, method: str, what: str, **words: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/session{self._session}{what}",
            json.dumps(words).encode() if method == "POST" else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=150) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def _choose_ports(self) -> None:
        self.port = free_port()

    def _start(self) -> bool:
        libraries = environment(MADE)
        if "LD_LIBRARY_PATH" in libraries:
            libraries["LD_LIBRARY_PATH"] += f":{MADE}/usr/lib/x86_64-linux-gnu/pulseaudio"
        command = [self._driver, f"--port={self.port}"]
        return self._run(command, group=True, env={**libraries, "HOME": str(self._directory)})

    def _end(self, how: signal.Signals) -> None:
        """The browser and its many processes would outlive their driver."""
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)
        super()._end(how)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=5) as answer:
                return bool(json.load(answer)["value"]["ready"])
        except OSError:
            return False
