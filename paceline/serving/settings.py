"""`Settings`: what a server allows and how long it waits. Not for models (`models/model_spec.py`) or engines."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import InvalidParameter

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """Limits and habits of one server.

    Attributes:
        max_body_bytes: largest request body; larger ones get 413.
        max_queue: requests that may wait besides `max_running`; further ones get 429.
        max_running: requests that run at once.
        request_timeout: seconds after which an answer ends with the tokens it has; None for never.
        ping_seconds: a stream that is silent for this long sends a comment, so that connections stay open.
        stream_interval: tokens per event of a stream. 1 sends tokens as they come; larger values hide from observers of
            the traffic how many tokens were drafted.
        drain_seconds: how long answers may continue after SIGTERM.
        api_keys: accepted keys; empty means no key is needed.
        allowed_hosts: accepted values of the Host header, at any port if they have none; empty means all.
        allowed_origins: web origins that may send requests; by default only the server's own.
        metrics_prefix: of the names in /metrics.
        spec_decode_metrics: responses always contain acceptance statistics in vLLM's format.
        shared_cache: requests of different API keys may share cached prompts and remembered texts.
        page: serve the playground at ``/``.
    """

    max_body_bytes: int = 4 << 20
    max_queue: int = 256
    max_running: int = 64
    request_timeout: float | None = None
    ping_seconds: float = 15.0
    stream_interval: int = 1
    drain_seconds: float = 30.0
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    metrics_prefix: str = "paceline"
    spec_decode_metrics: bool = False
    shared_cache: bool = False
    page: bool = True

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_running", "ping_seconds", "stream_interval"):
            if not getattr(self, name) > 0:
                raise InvalidParameter(name, f"{getattr(self, name)}", "give a number above 0")
        for name in ("max_queue", "drain_seconds"):
            if not getattr(self, name) >= 0:
                raise InvalidParameter(name, f"{getattr(self, name)}", "give 0 or more")
        if not _METRIC.fullmatch(self.metrics_prefix):
            problem = f"{self.metrics_prefix!r} begins no name that Prometheus reads"
            raise InvalidParameter("metrics_prefix", problem, "use letters, digits and _")
        if not all(key.strip() for key in self.api_keys):
            problem = "is empty, so every request would have it"
            raise InvalidParameter("api_key", problem, "give a secret text, or leave it out where nobody else can ask")
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                remedy = "write it as browsers send it: https://example.org or http://localhost:3000, without a path"
                raise InvalidParameter("allowed_origin", f"{origin!r} is no web origin", remedy)
        if self.request_timeout is not None and not self.request_timeout > 0:
            raise InvalidParameter(
                "request_timeout", f"{self.request_timeout}", "give seconds above 0, or leave it out"
            )


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address, reachable from this machine only."""
    return host in _LOOPBACK or host.startswith("127.")


def local_names(host: str) -> tuple[str, ...]:
    """Accepted host names of a server on loopback; others would allow DNS rebinding by web pages."""
    return tuple(sorted({*_LOOPBACK[:2], "[::1]", host}))


def check_host(host: str) -> None:
    """Raise InvalidParameter for an address with a port or a protocol."""
    is_bracketed = host.startswith("[") and "]:" in host
    if "://" in host or is_bracketed or (host.count(":") == 1 and host.rpartition(":")[2].isdigit()):
        raise InvalidParameter("host", f"{host!r} is more than an address", "write e.g. --host localhost --port 8000")


def check_exposure(host: str, api_keys: tuple[str, ...], insecure: bool) -> None:
    """Raise InvalidParameter for a server that is reachable from other machines without an API key."""
    if not is_loopback(host) and not api_keys and not insecure:
        problem = f"{host} is reached from other machines and no API key is asked for"
        raise InvalidParameter("host", problem, "give --api-key or --api-key-file, or say --insecure")


def read_keys(path: Path) -> tuple[str, ...]:
    """One key per line; empty lines and those that begin with # are passed over. Raises InvalidParameter."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(
            "api_key_file", f"{path} cannot be read ({error})", "give a readable text file"
        ) from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise InvalidParameter("api_key_file", f"{path} holds no key", "write one key per line")
    return keys
