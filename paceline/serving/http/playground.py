"""The playground at ``/``: static files of `page/`, offline and under a strict content security policy.

What the page does is in `page/app.js`; everything it shows it gets from the API that everybody uses.
"""

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.serving.http.refusals import HttpRefusal

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


def page_routes() -> list[Route]:
    """Routes of the page."""
    folder = files("paceline.serving") / "page"
    names = [each.name for each in folder.iterdir() if each.name.rpartition(".")[2] in _KINDS]
    read = {name: (folder / name).read_bytes() for name in names}

    async def page(_: Request) -> Response:
        return _file(read, "index.html")

    async def part(request: Request) -> Response:
        return _file(read, request.path_params["name"])

    return [Route("/", page), Route("/page/{name}", part)]


def _file(read: dict[str, bytes], name: str) -> Response:
    if name not in read:
        raise HttpRefusal(404, f"the page has no file {name[:40]!r}")
    return Response(read[name], headers=_HEADERS, media_type=f"{_KINDS[name.rpartition('.')[2]]}; charset=utf-8")
