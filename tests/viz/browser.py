"""A headless Chromium driven over its DevTools protocol, for tests of pages: https://chromedevtools.github.io/devtools-protocol."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
    "--remote-debugging-port=0",
)
DRAWING = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
NO_DRAWING = ("--disable-gpu", "--disable-webgl", "--disable-3d-apis", "--disable-software-rasterizer")
PATIENCE = 120.0  # s until something counts as not happening


def chromium() -> str | None:
    """The program, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A browser with one page. `messages` are the errors and warnings of its console, `fetched` the addresses it asked for."""

    def __init__(self, profile: Path, options: tuple[str, ...] = DRAWING, size: tuple[int, int] = (480, 320)):
        program = chromium()
        assert program is not None
        window = (f"--window-size={size[0]},{size[1]}", f"--user-data-dir={profile}")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([program, *OPTIONS, *options, *window, "about:blank"], **quiet)
        port = wait(lambda: _port(profile / "DevToolsActivePort"), "the browser did not start")
        with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            target = next(t for t in json.load(answer) if t["type"] == "page")
        self._socket = connect(target["webSocketDebuggerUrl"], max_size=None, compression=None)
        self._count, self.messages, self.fetched = 0, list[str](), list[str]()
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command; events on the way are noted."""
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE))
            if message.get("id") == self._count:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        kind, facts = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            found = facts["exceptionDetails"]
            self.messages.append(str(found.get("exception", {}).get("description", found["text"])))
        elif kind == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.messages.append(" ".join(str(a.get("value", a.get("description"))) for a in facts["args"]))
        elif kind == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.messages.append(facts["entry"]["text"])
        elif kind == "Network.requestWillBeSent":
            self.fetched.append(facts["request"]["url"])

    def open(self, path: Path) -> None:
        """Opens a file and waits until it is loaded; forgets the messages of what was open before."""
        self.messages.clear()
        self.fetched.clear()
        self.send("Page.navigate", url=path.absolute().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Waits until an expression in the page is true; returns its value."""
        return wait(lambda: self.run(condition), f"it never became true: {condition}")

    def picture(self) -> bytes:
        """The page as a PNG file."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(PATIENCE)


def wait(attempt: Callable[[], Any], sentence: str) -> Any:
    """The first true value of an attempt that is made again and again."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = attempt()
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(sentence)


def _port(file: Path) -> str | None:
    lines = file.read_text().splitlines() if file.is_file() else []
    return lines[0] if lines else None
