"""A small HTTP server on this machine whose faults a test can choose."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Dict, List, Optional


class FaultyServer:
    """Serves files from memory; use as a context manager.

    Attributes:
        files: path without its slash -> contents.
        ranges: whether ``Range`` is obeyed.
        drop_after: bytes of a body after which the connection is closed, one entry for each request; empty: never.
        lengths: whether answers tell their length.
        wrong_bytes: whether a range comes from another place of the file than its header says.
        statuses: statuses to answer with before all else, one for each request.
        requests: the ``Range`` header of every request, ``None`` if it had none.
    """

    def __init__(self, files: Dict[str, bytes]):
        self.files = files
        self.ranges = True
        self.lengths = True
        self.wrong_bytes = False
        self.drop_after: List[Optional[int]] = []
        self.statuses: List[int] = []
        self.requests: List[Optional[str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FaultyServer":
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self):
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802
                asked = self.headers.get("Range")
                owner.requests.append(asked)
                data = owner.files.get(self.path.lstrip("/"))
                status = owner.statuses.pop(0) if owner.statuses else 200 if data is not None else 404
                if status != 200:
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self._send(data, asked)

            def _send(self, data: bytes, asked: Optional[str]) -> None:
                tag = '"' + hashlib.sha256(data).hexdigest()[:12] + '"'
                start = 0
                if asked and owner.ranges and self.headers.get("If-Range", tag) == tag:
                    start = int(re.match(r"bytes=(\d+)-$", asked).group(1))
                    if start >= len(data):
                        self.send_response(416)
                        self.send_header("Content-Length", "0")
                        self.end_headers()
                        return
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                else:
                    self.send_response(200)
                body = data[start:]
                if start and owner.wrong_bytes:
                    body = data[: len(body)]
                if owner.lengths:
                    self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", tag)
                self.end_headers()
                limit = owner.drop_after.pop(0) if owner.drop_after else None
                self.wfile.write(body[:limit])
                if limit is not None and limit < len(body):
                    self.close_connection = True
                    self.connection.close()

            def log_message(self, *args: object) -> None:
                pass

        return Handler
