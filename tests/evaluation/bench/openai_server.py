"""A server that speaks OpenAI's protocol and answers by a function, for tests of what asks it."""

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer


class Fake:
    """What a served model does.

    Args:
        say: (body of the request) to the pieces of the answer.
        pages: further GET paths and their bodies.
        timings: told with each answer, as llama-server does.
        posts: further POST paths, and functions of the body that answer them.
        gap: log probability of each token less that of the second best, told to whoever asks for it.
    """

    def __init__(
        self, say: Callable[[dict], list[str]], owner: str = "fake", pages=None, timings=None, posts=None, gap=None
    ):
        self.gap = gap
        self.say, self.owner, self.pages, self.timings, self.posts = say, owner, pages or {}, timings, posts or {}
        self.bodies: list[dict] = []


@contextmanager
def saying(answer: bytes):
    """The URL of something that answers every request with these bytes and hangs up."""

    class Handler(StreamRequestHandler):
        def handle(self):
            length = 0
            while (line := self.rfile.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.rfile.read(length)
            self.wfile.write(answer)

    server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(fake: Fake):
    """The URL under which `fake` is served."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            page = {"/v1/models": json.dumps({"data": [{"id": "tiny", "owned_by": fake.owner}]})} | fake.pages
            body = page.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write((body() if callable(body) else body or "").encode())

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path in fake.posts or "completions" not in self.path:
                known = fake.posts.get(self.path)
                self.send_response(200 if known else 404)
                self.end_headers()
                self.wfile.write(json.dumps(known(body) if known else {}).encode())
                return
            fake.bodies.append(body)
            pieces = fake.say(body)
            if not body.get("stream"):
                best = [{"logprob": -1.0 - (fake.gap or 0)}, {"logprob": -1.0}]
                told = {"content": [{"token": each, "top_logprobs": best} for each in pieces]}
                self.send_response(200)
                self.end_headers()
                choice = {"logprobs": told} if fake.gap is not None else {}
                self.wfile.write(json.dumps({"choices": [choice]}).encode())
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for piece in pieces:
                self._send({"choices": [{"delta": {"content": piece}}]})
            usage = {"completion_tokens": len(pieces), "prompt_tokens": 3}
            self._send({"choices": [], "usage": usage} | ({"timings": fake.timings} if fake.timings else {}))
            self.wfile.write(b"data: [DONE]\n\n")

        def _send(self, event):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
