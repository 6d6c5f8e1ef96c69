"""`Guard`: who may ask at all, before anything of a request is read: the Host header, web origins, API keys.

Not for what a request asks.
"""

import hashlib
import hmac
import re
from typing import Any

from starlette.responses import Response

from paceline.serving.http.refusals import HttpRefusal, refusal_of
from paceline.serving.settings import Settings

OPEN_PATHS = frozenset(("/health", "/ready", "/", "/page"))
"""What anybody may read: probes have no keys, and the page asks its user for one."""

_LEAVE = {
    "Access-Control-Allow-Headers": "authorization, content-type, x-api-key",
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Max-Age": "600",
}
_SHOWN = b"X-Request-Id, Retry-After"
"""Headers of an answer that a page may read besides the usual ones."""
_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4000}")
"""Names of headers, as a preflight request lists them."""
_PORT = re.compile(r":\d{1,5}$")


class Guard:
    """ASGI middleware; the state of a request that it lets in has ``caller``, the hash of its key or "".

    Args:
        app: what is guarded.
        settings: keys (kept as hashes only), hosts and origins.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._keys = [_hash(key) for key in settings.api_keys]
        self._hosts = frozenset(settings.allowed_hosts)
        self._origins = frozenset(settings.allowed_origins)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get("origin", "")
        send = self._allowing(origin, send)
        if scope["method"] == "OPTIONS" and origin in self._origins:
            await Response(status_code=204, headers=_leave(headers))(scope, receive, send)
            return
        try:
            self._check(scope["path"], headers)
            scope.setdefault("state", {})["caller"] = _hash(_key(headers)).hex() if self._keys else ""
        except HttpRefusal as error:
            await refusal_of(error).response(scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: dict[str, str]) -> None:
        host = headers.get("host", "").lower()
        if self._hosts and self._hosts.isdisjoint((host, _PORT.sub("", host))):
            raise HttpRefusal(421, f"host {host[:100]!r} is not served here; see --allowed-host")
        is_open = path in OPEN_PATHS or path.startswith("/page/")
        if self._keys and not is_open and not self._knows(_key(headers)):
            problem = "no valid API key; send Authorization: Bearer KEY"
            raise HttpRefusal(401, problem, {"WWW-Authenticate": "Bearer"})

    def _knows(self, key: str) -> bool:
        """Whether `key` is one of ours; takes the same time whichever it is not."""
        given = _hash(key)
        return any([hmac.compare_digest(given, known) for known in self._keys])

    def _allowing(self, origin: str, send: Any) -> Any:
        """`send`, with the header that lets a page of an allowed origin read the answer."""
        if origin not in self._origins:
            return send

        async def with_origin(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin"),
                        (b"access-control-expose-headers", _SHOWN)]  # fmt: skip
                message = message | {"headers": [*message.get("headers", []), *more]}
            await send(message)

        return with_origin


def _leave(headers: dict[str, str]) -> dict[str, str]:
    """The answer to a preflight request: clients send headers of their own, so all that are asked for may be sent."""
    asked = headers.get("access-control-request-headers", "")
    return _LEAVE | ({"Access-Control-Allow-Headers": asked} if _NAMES.fullmatch(asked) else {})


def _key(headers: dict[str, str]) -> str:
    """What was sent as a key: OpenAI's header, or Anthropic's."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
