"""The local HTTP server of the page: it serves the page's files and the weights to browsers on this machine.

It listens on the loopback address, checks the Host header (against DNS rebinding) and the Origin, serves only below a
random path, and only files and requests that it knows by name. Any port of the loopback address is accepted, since
`ssh -L` forwards another one.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import threading
import weakref
import webbrowser
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from clearhead.errors import ClearheadError
from clearhead.explore.live_model import end_when
from clearhead.explore.page_file import PAGE, bundle_page
from clearhead.explore.page_requests import PageRequests, RecordGone, Response
from clearhead.formatting import DIGITS

HOST = "127.0.0.1"
OWN_HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?")
TIMEOUT = 30  # seconds that a request may take to arrive
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Server(AbstractContextManager["Server"]):
    """Serves the page of a record at `url`, from a thread of its own, until `close`.

    A script that has nothing else to do calls `wait`.
    """

    def __init__(self, requests: PageRequests, *, port: int = 0) -> None:
        self.requests, self.token = requests, secrets.token_urlsafe(24)
        requests.prepare()
        self.files = {  # the scripts as one: fifty requests, one import after another, would take longer
            "index.html": Response((PAGE / "index.html").read_bytes(), "text/html; charset=utf-8"),
            "style.css": Response((PAGE / "style.css").read_bytes(), "text/css; charset=utf-8"),
            "app.js": Response(bundle_page().encode(), "text/javascript; charset=utf-8"),
        }
        self._server = _HttpServer((HOST, port), _Handler)
        self._server.owner = self
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="clearhead-look", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    def open(self) -> Server:
        """Opens the page in the browser, if there is one."""
        webbrowser.open(self.url)
        return self

    def wait(self) -> None:
        """Blocks until the server is closed or the process interrupted."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server.close_connections()
        self.requests.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.url})"


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    owner: Server

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connections = weakref.WeakSet[socket.socket]()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def close_connections(self) -> None:
        """Closes what browsers keep open, on which a closed server would go on answering."""
        for connection in list(self.connections):
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that disconnects during a response is no error."""


class _HttpError(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: _HttpServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "clearhead", ""
    timeout = TIMEOUT
    policy: ClassVar[dict[str, str]] = {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }

    def do_GET(self) -> None:
        self._send(self._get)

    def do_POST(self) -> None:
        self._send(self._post)

    def _send(self, work: Callable[[], Response]) -> None:
        """Sends the response, or an error as one line of JSON, never a traceback."""
        try:
            with end_when(self._has_left):
                status, response = 200, work()
        except _HttpError as error:
            status, response = error.status, Response.from_json({"error": str(error)})
            self.close_connection = True  # the request may not have been read to its end
        except ClearheadError as error:
            status = 410 if isinstance(error, RecordGone) else 400
            response = Response.from_json({"error": str(error)})
        except Exception as error:
            status, response = 500, Response.from_json({"error": f"{type(error).__name__}: {error}"})
        try:
            self.send_response(status)
            for name, value in self.policy.items():
                self.send_header(name, value)
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _has_left(self) -> bool:
        """Whether the browser has closed the connection: the request was cancelled, or its page closed or reloaded."""
        seconds = self.connection.gettimeout()
        self.connection.settimeout(0)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.settimeout(seconds)

    def _get(self) -> Response:
        if self.path == "/favicon.ico":  # browsers request it by themselves
            return Response(b"", "image/x-icon")
        name, query = self._read_request()
        files = self.server.owner.files
        return files[name or "index.html"] if name in ("", *files) else self.server.owner.requests.get(name, query)

    def _post(self) -> Response:
        name, _ = self._read_request()
        if self.headers.get("Origin") is None:
            raise _HttpError(403, "only the page itself may send requests")
        if self.headers.get_content_type() != "application/json":
            raise _HttpError(415, "the content type must be application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _HttpError(411, "the header Content-Length is missing")
        most = self.server.owner.requests.max_body
        if len(length) > DIGITS or int(length) > most:
            raise _HttpError(413, f"a request may have at most {most:,} bytes")
        raw = self.rfile.read(int(length))
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):
            raise _HttpError(400, "the body is not valid JSON") from None
        if not isinstance(content, dict):
            raise _HttpError(400, "the body must be a JSON object")
        return self.server.owner.requests.post(name, content)

    def _read_request(self) -> tuple[str, dict[str, str]]:
        """The name below the token and the query, after checking who sent the request."""
        owner = self.server.owner
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(hosts) != 1 or not OWN_HOST.fullmatch(hosts[0]):
            raise _HttpError(403, "this server is for this machine only; open it as 127.0.0.1 or localhost")
        if origins not in ([], [f"http://{hosts[0]}"]):
            raise _HttpError(403, "requests from other sites are refused")
        site, mode = self.headers.get("Sec-Fetch-Site", "none"), self.headers.get("Sec-Fetch-Mode", "")
        if site not in ("none", "same-origin") and mode != "navigate":
            raise _HttpError(403, "requests from other sites are refused")
        address = urlsplit(self.path)
        empty, token, *rest = address.path.split("/")
        if empty or not hmac.compare_digest(token.encode(), owner.token.encode()) or len(rest) != 1:
            raise _HttpError(404, "not found")
        query = parse_qs(address.query, keep_blank_values=True, max_num_fields=16)
        return rest[0], {key: values[-1] for key, values in query.items()}

    def log_message(self, *_: Any) -> None:
        """Nothing is logged: the address contains the token."""
