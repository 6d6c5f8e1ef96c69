"""Downloads one file over HTTP: the target appears complete and checked or not at all, and downloads can be resumed.

Received bytes are in ``NAME.part`` beside the target, with the server's ETag in ``NAME.part.etag``. A later download
requests the rest (RFC 9110, sections 13.1.5 and 14) on the condition that the ETag is unchanged (``If-Range``). A
server that does not support ranges, or whose file has changed, sends the whole file, which replaces the partial one.
Not for which files a model has (`hub.py`).
"""

import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock

from paceline.errors import DownloadFailed
from paceline.models.cache_dir import PARTIAL
from paceline.models.intact import file_digest, is_remembered, remember
from paceline.types import Progress

_CHUNK = 1 << 20
_TIMEOUT = 30.0
"""Seconds without a byte after which a connection is given up."""
_ATTEMPTS = 5
"""Consecutive attempts without a new byte after which a download fails."""
_WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds before the next attempt."""
_LONGEST_WAIT = 60.0
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_BROKEN = (http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError, urllib.error.URLError)
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)")
"""First byte of a response and size of the whole file; servers may omit either (RFC 9110, section 14.4)."""
_LONGEST_ANSWER = 1 << 26
"""Most bytes of a listing."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to download.

    Attributes:
        url: its address.
        num_bytes: its size according to the listing.
        sha256: of its content, in hexadecimal; None where unknown, and then only the size is checked.
        headers: request headers; ``Authorization`` is not sent to other hosts after a redirect.
    """

    url: str
    num_bytes: int
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def fetch_file(remote: Remote, target: Path, progress: Progress | None = None) -> None:
    """Download `remote` to `target`, resuming what an earlier call left.

    One process at a time downloads a target; others wait and then use its file. A damaged file is replaced.

    Args:
        progress: called with (bytes present, bytes in total).

    Raises:
        DownloadFailed: the server refuses, cannot be reached, or sends other content than listed. Received bytes are
            kept for the next call, except where the content was wrong.
        OSError: the disk is full or not writable.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if not _is_here(remote, target):
            _Download(remote, target, progress or (lambda done, total: None)).run()


def _is_here(remote: Remote, target: Path) -> bool:
    """Whether `target` is complete and undamaged; its content is hashed once after every boot (`intact.py`)."""
    if not target.is_file() or target.stat().st_size != remote.num_bytes:
        return False
    stamp = target.with_name(f"{target.name}.checked")
    if remote.sha256 is None or is_remembered([target], stamp):
        return True
    right = file_digest(target) == remote.sha256
    if right:
        remember([target], stamp)
    return right


def read_url(url: str, headers: Mapping[str, str] | None = None) -> bytes:
    """The body of a GET response, for listings; transient errors are retried.

    Raises:
        DownloadFailed: the body is longer than 64 MiB, or the server cannot be reached.
        urllib.error.HTTPError: the server refuses.
    """
    for wait in (*_WAITS, None):
        try:
            with _open(url, dict(headers or {})) as answer:
                content = answer.read(_LONGEST_ANSWER + 1)
        except urllib.error.HTTPError as error:
            if error.code not in _TRANSIENT or wait is None:
                raise
            time.sleep(_asked_wait(error, wait))
        except (OSError, http.client.HTTPException) as error:
            if wait is None:
                raise DownloadFailed(f"{url}: out of reach ({_reason(error)}); check the network") from error
            time.sleep(wait)
        else:
            if len(content) > _LONGEST_ANSWER:
                raise DownloadFailed(f"{url}: the answer is longer than {_LONGEST_ANSWER} bytes; check the address")
            return content
    raise AssertionError("the last attempt returns or raises")


class _Download:
    """The download of one file, in as many attempts as necessary."""

    def __init__(self, remote: Remote, target: Path, progress: Progress) -> None:
        self._remote, self._target, self._progress = remote, target, progress
        self._part = target.with_name(f"{target.name}{PARTIAL}")
        self._etag = self._part.with_name(f"{self._part.name}.etag")

    def run(self) -> None:
        """Download the file; if resuming an earlier call's bytes gives wrong content, start once from the beginning."""
        for _ in range(2 if self._have() else 1):
            self._complete()
            if self._is_right():
                os.replace(self._part, self._target)
                self._etag.unlink(missing_ok=True)
                return
            self._forget()
        raise self._another_file("size or sha256 differ")

    def _another_file(self, problem: str) -> DownloadFailed:
        return DownloadFailed(
            f"{self._remote.url}: what arrived is not what its owner published ({problem}); try again, and if it stays "
            "so tell whoever runs the server or the proxy in between"
        )

    def _complete(self) -> None:
        """Make attempts until all bytes are present. Raises DownloadFailed after `_ATTEMPTS` without progress."""
        failures, furthest = 0, self._have()
        while self._have() != self._remote.num_bytes or not self._part.exists():
            try:
                self._attempt()
                problem, wait = f"the server ended it after {self._have()} bytes", 0.0
            except urllib.error.HTTPError as error:
                problem, wait = f"HTTP {error.code} {error.reason}", self._refused(error)
            except _BROKEN as error:
                problem, wait = _reason(error), 0.0
            failures = 0 if self._have() > furthest else failures + 1
            furthest = max(furthest, self._have())
            if failures == _ATTEMPTS:
                raise DownloadFailed(
                    f"{self._remote.url}: {problem}; {self._have()} of {self._remote.num_bytes} bytes are here, the "
                    "same command goes on from there"
                )
            if failures:
                time.sleep(max(wait, _WAITS[failures - 1]))

    def _refused(self, error: urllib.error.HTTPError) -> float:
        """Seconds that the server asks to wait. Raises DownloadFailed for an error that waiting does not cure."""
        if error.code == 416:  # the partial file is longer than the file
            self._forget()
            self._check_size(error.headers, whole=False)
            return 0.0
        if error.code not in _TRANSIENT:
            problem = f"HTTP {error.code} {error.reason}"
            raise DownloadFailed(f"{self._remote.url}: {problem}; check the name and your access to it") from error
        return _asked_wait(error, 0.0)

    def _attempt(self) -> None:
        """Request the missing bytes, and keep those that are received."""
        have, etag = self._have(), self._known_etag()
        if have > self._remote.num_bytes or not (etag or self._remote.sha256):
            have = 0
        headers = {**self._remote.headers, "Accept-Encoding": "identity"}
        if have:
            headers |= {"Range": f"bytes={have}-"} | ({"If-Range": etag} if etag else {})
        with _open(self._remote.url, headers) as answer:
            if answer.status == 206 and not self._continues(answer.headers, have, etag):
                self._forget()
                return
            have = have if answer.status == 206 else 0
            self._check_size(answer.headers, whole=answer.status == 200)
            self._note_etag(answer.headers.get("ETag"))
            self._take(answer, have)

    def _continues(self, headers: Mapping[str, str], have: int, etag: str) -> bool:
        """Whether a partial response continues the same file after the first `have` bytes."""
        found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if found is None or found[1] != str(have) or found[2] not in (None, str(self._remote.num_bytes)):
            return False
        return not etag or headers.get("ETag", etag) == etag

    def _check_size(self, headers: Message, whole: bool) -> None:
        """Raise DownloadFailed if the response headers show another file size than listed.

        Args:
            whole: whether the response is the whole file rather than a range.
        """
        length = headers.get("Content-Length", "") if whole and "Content-Encoding" not in headers else ""
        found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        size = length if length.isdigit() else found[2] if found else None
        if size and int(size) != self._remote.num_bytes:
            raise self._another_file(f"it has {size} bytes there, not {self._remote.num_bytes}")

    def _take(self, answer: Any, have: int) -> None:
        """Write the response body from byte `have` on, up to the listed size."""
        total = self._remote.num_bytes
        with self._part.open("r+b" if have else "wb") as part:
            part.truncate(have)
            part.seek(have)
            self._progress(have, total)
            while have < total and (piece := _piece(answer, min(_CHUNK, total - have))):
                part.write(piece)
                have += len(piece)
                self._progress(have, total)
            part.flush()
            os.fsync(part.fileno())

    def _have(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _known_etag(self) -> str:
        return self._etag.read_text(encoding="latin-1") if self._etag.exists() else ""

    def _note_etag(self, etag: str | None) -> None:
        """Store a strong ETag; a weak one (``W/``) does not guarantee identical bytes and is dropped."""
        if etag and etag.startswith('"'):
            self._etag.write_text(etag, encoding="latin-1")
        else:
            self._etag.unlink(missing_ok=True)

    def _is_right(self) -> bool:
        return self._remote.sha256 is None or file_digest(self._part) == self._remote.sha256

    def _forget(self) -> None:
        self._part.unlink(missing_ok=True)
        self._etag.unlink(missing_ok=True)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but send credentials to the first host only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """See the base class."""
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and _origin(req.full_url) != _origin(newurl):
            new.remove_header("Authorization")
        return new


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _open(url: str, headers: dict[str, str]) -> Any:
    """The response to a GET request. Raises DownloadFailed for schemes other than http and https."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadFailed(f"{url}: not an address of http or https; give one")
    opener = urllib.request.build_opener(_Redirects())
    opener.addheaders = [("User-Agent", "paceline")]
    return opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)


def _piece(answer: Any, size: int) -> bytes:
    """Up to `size` bytes of a response. Raises ConnectionError for all that can happen to a network, which is not
    always one: a host without a route is a plain OSError, as a full disk is."""
    try:
        return answer.read1(size)
    except OSError as error:
        raise ConnectionError(_reason(error)) from error


def _asked_wait(error: urllib.error.HTTPError, otherwise: float) -> float:
    """Seconds of ``Retry-After``, at most `_LONGEST_WAIT`; `otherwise` without that header."""
    asked = error.headers.get("Retry-After", "") if error.headers else ""
    return min(float(asked), _LONGEST_WAIT) if asked.isdigit() else otherwise


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", None)
    return str(inner or error) or type(error).__name__
