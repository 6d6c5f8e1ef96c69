"""The playground at ``/``: static files of `page/`, offline and under a strict content security policy.

What the page does is in `page/app.js`; everything it shows it gets from the API that everybody uses.
"""

from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

from paceline.serving.refusals import HttpRefusal

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def add_page(app: FastAPI) -> None:
    """Routes of the page."""
    folder = files("paceline.serving") / "page"
    names = [each.name for each in folder.iterdir() if each.name.rpartition(".")[2] in _KINDS]
    read = {name: (folder / name).read_bytes() for name in names}

    @app.api_route("/", methods=["GET", "HEAD"])
    async def page() -> Response:
        return _file(read, "index.html")

    @app.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def part(name: str) -> Response:
        return _file(read, name)


def _file(read: dict[str, bytes], name: str) -> Response:
    if name not in read:
        raise HttpRefusal(404, f"the page has no file {name[:40]!r}")
    return Response(read[name], headers=_HEADERS, media_type=f"{_KINDS[name.rpartition('.')[2]]}; charset=utf-8")
