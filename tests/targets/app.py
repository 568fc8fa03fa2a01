"""The application that gunicorn serves: the request's body, compressed by a library and back."""

from __future__ import annotations

import zlib


def application(environ, start_response):
    """Answer with the body, and its length in a header."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    answer = zlib.decompress(zlib.compress(body))
    start_response("200 OK", [("Content-Length", str(len(answer))), ("X-Length", str(len(body)))])
    return [answer]
