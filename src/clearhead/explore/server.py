"""Server: the page with all weights behind it, for this machine alone.

It listens on the loopback address, answers only to its own name (so that no other site can be made to point here), only
below a path that nobody can guess, and hands out only what it knows by name.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import webbrowser
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from clearhead.errors import ClearheadError
from clearhead.explore.answers import NUMBERS, Answer, Answers
from clearhead.explore.single import PAGE

HOST = "127.0.0.1"
LARGEST = 2**20  # bytes of a request's body
KEPT = 64 * 2**20  # bytes of answers that are kept for the next time
PATIENCE = 30  # seconds that a request may take to arrive
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Server:
    """The page of a record: `url` is where it can be seen, by those who know it; `close` ends it.

    It answers from a thread of its own. A script that has nothing else to do calls `wait`.
    """

    def __init__(self, answers: Answers, *, port: int = 0) -> None:
        self.answers, self.token = answers, secrets.token_urlsafe(24)
        self.files = {path.relative_to(PAGE).as_posix(): path for path in PAGE.rglob("*") if path.suffix in TYPES}
        self._server = _Listening((HOST, port), _Handler)
        self._server.owner = self
        self.port: int = self._server.server_address[1]
        self.hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        self._kept: OrderedDict[str, Answer] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._server.serve_forever, name="clearhead-look", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    def open(self) -> Server:
        """Shows the page in the browser, if there is one."""
        webbrowser.open(self.url)
        return self

    def wait(self) -> None:
        """Until somebody closes it, or interrupts."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.answers.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.url})"

    def get(self, name: str, query: Mapping[str, str]) -> Answer:
        """The answer to a question, as it was given before or anew."""
        key = json.dumps([self.answers.newest, name, sorted(query.items())])
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        answer = self.answers.get(name, query)
        if answer.kind != NUMBERS:
            return answer
        with self._lock:
            self._kept[key] = answer
            while sum(len(one.body) for one in self._kept.values()) > KEPT and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return answer


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    owner: Server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: _Listening
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "clearhead", ""
    timeout = PATIENCE
    policy: ClassVar[dict[str, str]] = {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }

    def do_GET(self) -> None:
        self._answered(self._get)

    def do_POST(self) -> None:
        self._answered(self._post)

    def _answered(self, work: Callable[[], Answer]) -> None:
        """Whatever goes wrong is said in one line, and never with a trace."""
        try:
            status, answer = 200, work()
        except _Refused as refused:
            status, answer = refused.status, Answer.words({"error": str(refused)})
            self.close_connection = True  # what it sent may not have been read
        except ClearheadError as error:
            status, answer = 400, Answer.words({"error": str(error)})
        except Exception as error:
            status, answer = 500, Answer.words({"error": f"{type(error).__name__}: {error}"})
        try:
            self.send_response(status)
            for name, value in self.policy.items():
                self.send_header(name, value)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _get(self) -> Answer:
        if self.path == "/favicon.ico":  # browsers ask for it by themselves, and complain
            return Answer(b"", "image/x-icon")
        name, query = self._asked()
        if name in ("", "index.html") or name in self.server.owner.files:
            path = self.server.owner.files[name or "index.html"]
            return Answer(path.read_bytes(), TYPES[path.suffix])
        return self.server.owner.get(name, query)

    def _post(self) -> Answer:
        name, _ = self._asked()
        if self.headers.get("Origin") not in {f"http://{host}" for host in self.server.owner.hosts}:
            raise _Refused(403, "this page takes orders from itself alone")
        if self.headers.get_content_type() != "application/json":
            raise _Refused(415, "send JSON, as application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refused(411, "say how long it is")
        if int(length) > LARGEST:
            raise _Refused(413, f"at most {LARGEST:,} bytes can be sent")
        raw = self.rfile.read(int(length))
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):
            raise _Refused(400, "this is no JSON") from None
        if not isinstance(content, dict):
            raise _Refused(400, "names and values are wanted")
        return self.server.owner.answers.post(name, content)

    def _asked(self) -> tuple[str, dict[str, str]]:
        """What is asked for, by whom may ask: a name below the token, and what follows the question mark."""
        owner = self.server.owner
        if self.headers.get_all("Host", []) not in [[host] for host in owner.hosts]:
            raise _Refused(403, "this server answers on this machine alone")
        if self.headers.get("Origin") not in {None, *(f"http://{host}" for host in owner.hosts)}:
            raise _Refused(403, "this page answers itself alone")
        site, mode = self.headers.get("Sec-Fetch-Site", "none"), self.headers.get("Sec-Fetch-Mode", "")
        if site not in ("none", "same-origin") and mode != "navigate":
            raise _Refused(403, "this page answers itself alone")
        address = urlsplit(self.path)
        empty, token, *rest = address.path.split("/")
        if empty or not hmac.compare_digest(token.encode(), owner.token.encode()) or not rest:
            raise _Refused(404, "there is nothing here")
        name = "/".join(rest)
        if len(rest) > 1 and name not in owner.files:  # only files of the page lie in folders
            raise _Refused(404, "there is nothing here")
        query = parse_qs(address.query, keep_blank_values=True, max_num_fields=16)
        return name, {key: values[-1] for key, values in query.items()}

    def log_message(self, *_: Any) -> None:
        """The address holds the token: it goes into no log."""
