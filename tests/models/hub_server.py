"""A hub on this machine: serves files with sizes and SHA-256 as the hub lists them, well or badly."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

COMMIT = "0123456789abcdef"


class Hub:
    """What is served, how, and what was asked for.

    Attributes:
        files: name to content. commit: of the repository, whose name does not matter.
        ranges: ``honoured``, ``ignored``, or ``careless``: parts are sent whatever ``If-Range`` says.
        breaks: after so many bytes of an answer the connection is cut, as often as there are entries.
        refusals: status codes of the next answers about files.
        etags: whether files have one.
        lists_digests: whether the listing has SHA-256.
        asked: (path, Range, If-Range, Authorization) of every request about files.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.commit, self.ranges = files, COMMIT, "honoured"
        self.breaks: list[int] = []
        self.refusals: list[int] = []
        self.etags, self.lists_digests, self.redirect = True, True, ""
        self.asked: list[tuple[str, str | None, str | None, str | None]] = []
        self.url = ""

    def listing(self) -> bytes:
        siblings = []
        for name, content in self.files.items():
            digest = {"lfs": {"sha256": hashlib.sha256(content).hexdigest()}} if self.lists_digests else {}
            siblings.append({"rfilename": name, "size": len(content)} | digest)
        return json.dumps({"sha": self.commit, "siblings": siblings}).encode()

    def etag(self, content: bytes) -> str:
        return f'"{hashlib.md5(content).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        """Nothing."""

    def do_GET(self):
        if self.path.startswith("/api/"):
            return self.answer(200, self.hub.listing(), {}) if "nothing" not in self.path else self.answer(404, b"", {})
        hub, get = self.hub, self.headers.get
        hub.asked.append((self.path, get("Range"), get("If-Range"), get("Authorization")))
        if hub.refusals:
            return self.answer(hub.refusals.pop(0), b"no", {"Retry-After": "0"})
        if hub.redirect:
            return self.answer(302, b"", {"Location": hub.redirect + self.path})
        return self.file(hub.files[self.path.split(f"/resolve/{hub.commit}/")[1]])

    def file(self, content):
        hub, asked, condition = self.hub, self.headers.get("Range"), self.headers.get("If-Range")
        headers = {"ETag": hub.etag(content)} if hub.etags else {}
        allowed = hub.ranges == "careless" or condition in (None, headers.get("ETag"))
        if asked is None or hub.ranges == "ignored" or not allowed:
            return self.answer(200, content, headers)
        first = int(asked.removeprefix("bytes=").removesuffix("-"))
        if first >= len(content):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        part = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
        return self.answer(206, content[first:], headers | part)

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if status in (200, 206) and self.hub.breaks and not self.path.startswith("/api/"):
            self.wfile.write(content[: self.hub.breaks.pop(0)])
            self.close_connection = True
            return
        self.wfile.write(content)


@contextmanager
def serving(hub: Hub):
    """`hub` at `hub.url` while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
