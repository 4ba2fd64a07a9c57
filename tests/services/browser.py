"""A browser that answers a server's question for user and password, as a person does in its dialogue.

Chromium takes commands of its DevTools protocol over two pipes, a JSON object and a NUL each. (An address with the
password in it does not do: scripts of such a page may fetch nothing.)
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1600,1200 --remote-debugging-pipe"
)


class Browser:
    """One page. Use it in a `with`."""

    def __init__(self, profile: Path, user: str, password: str) -> None:
        self._login = {"response": "ProvideCredentials", "username": user, "password": password}
        self._number, self._session, self._rest = 0, "", b""
        self.asked = 0  # times that a server wanted to know who we are
        commands, self._to = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in os.pipe())
        self._from, answers = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in os.pipe())
        line = ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", str(CHROMIUM), *_OPTIONS.split()]
        self._process = subprocess.Popen(
            [*line, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)

    def __enter__(self) -> Browser:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Fetch.enable", handleAuthRequests=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)

    def open(self, link: str, until: str, seconds: float = 90) -> str:
        """Go to a page; its text once a condition in JavaScript holds.

        Raises:
            AssertionError: it does not hold in that time.
        """
        self._call("Page.navigate", url=link)
        end = time.monotonic() + seconds
        while not self._value(f"Boolean({until})"):
            if time.monotonic() > end:
                raise AssertionError(f"not so after {seconds} s: {until}; on the page: {self.text()}")
            self._listen(0.5)
        return self.text()

    def text(self) -> str:
        """What can be read on the page."""
        return str(self._value("document.body?.innerText ?? ''"))

    def _value(self, expression: str) -> Any:
        return self._call("Runtime.evaluate", expression=expression)["result"].get("value")

    def picture(self, file: Path) -> None:
        """Write a screenshot as PNG."""
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _send(self, method: str, **params: Any) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._number

    def _call(self, method: str, **params: Any) -> Any:
        number, until = self._send(method, **params), time.monotonic() + 60
        while time.monotonic() < until:
            for message in self._listen(1):
                if message.get("id") == number:
                    assert "error" not in message, message
                    return message["result"]
        raise AssertionError(f"{method}: no answer of the browser")

    def _listen(self, seconds: float) -> list[Any]:
        """What comes in that time; requests go on, questions for a password are answered."""
        if not select.select([self._from], [], [], seconds)[0]:
            return []
        self._rest += os.read(self._from, 1 << 20)
        *whole, self._rest = self._rest.split(b"\0")
        messages = [json.loads(message) for message in whole]
        for message in messages:
            if message.get("method") == "Fetch.authRequired":
                self.asked += 1
                request = message["params"]["requestId"]
                self._send("Fetch.continueWithAuth", requestId=request, authChallengeResponse=self._login)
            elif message.get("method") == "Fetch.requestPaused":
                self._send("Fetch.continueRequest", requestId=message["params"]["requestId"])
        return messages
