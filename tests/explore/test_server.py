"""Server: it answers the page with the weights themselves, and nobody else at all."""

import http.client
import json
import re
import socket
import socketserver
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import pytest
import torch

from clearhead import Mask, Record, load
from clearhead.errors import ClearheadError, RecordError
from clearhead.explore import Scene, live_model, open_record, page_requests
from clearhead.explore.attention_map import AttentionMap
from clearhead.explore.live_model import MAX_CHARACTERS, LiveModel, free_memory
from clearhead.explore.page_file import PAGE
from clearhead.explore.page_requests import MAX_BODY, KeptRecords, PageRequests, RecordGone
from clearhead.explore.server import Server
from clearhead.predictor import Predictor
from clearhead.tasks.translation import TASK
from tests.explore.records import drawn, translator, weights_of
from tests.tasks.translators import learned

CLOSE = {"atol": 2e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def record() -> Record:
    return drawn(67, layers=2, heads=3, mask=Mask.causal())


@pytest.fixture(scope="module")
def server(record: Record) -> Iterator[Server]:
    with open_record(record, browser=False) as server:
        yield server


def ask(
    server: Server, path: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """One request below the token; `headers` replace those that a browser would send, None leaves one away."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    whole = path if path.startswith("/") else f"/{server.token}/{path}"
    sent = {"Host": f"127.0.0.1:{server.port}", **(headers or {})}
    connection.putrequest(method, whole, skip_host=True)
    for name, value in sent.items():
        connection.putheader(name, value)
    if body is not None and "Content-Length" not in sent:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    reply = connection.getresponse()
    found = reply.status, reply.read(), reply.headers
    connection.close()
    return found


def numbers(server: Server, path: str, **query: Any) -> tuple[dict[str, Any], torch.Tensor]:
    status, body, _ = ask(server, f"{path}?{urlencode(query)}")
    assert status == 200, body
    line, _, raw = body.partition(b"\n")
    return json.loads(line), torch.from_numpy(np.frombuffer(raw, "<f4").copy())


def post(server: Server, path: str, content: Any) -> tuple[int, Any]:
    headers = {"Origin": f"http://127.0.0.1:{server.port}", "Content-Type": "application/json"}
    status, body, _ = ask(server, path, "POST", json.dumps(content).encode(), headers)
    return status, json.loads(body)


def test_the_page_and_its_parts_come_with_a_strict_policy(server):
    for name, kind in (("", "text/html"), ("app.js", "text/javascript"), ("style.css", "text/css")):
        status, body, headers = ask(server, name)
        assert status == 200
        assert body
        assert headers.get_content_type() == kind
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
    scene = json.loads(ask(server, "scene.json")[1])
    assert [one["name"] for one in scene["attentions"]] == ["encoder.0.self", "encoder.1.self"]
    assert not scene["live"]


def test_the_scripts_of_the_page_come_as_one(server):
    assert set(server.files) == {"index.html", "style.css", "app.js"}
    script = ask(server, "app.js")[1].decode()
    assert "\nimport " not in script  # fifty files, one after another, took longer than a record of 100,000 tokens
    assert "class Atlas" in script
    assert ask(server, "panes/head_atlas.js")[0] == 404


def test_a_scene_that_was_prepared_knows_of_effects_that_came_later(record):
    requests = PageRequests(record)
    requests.prepare()
    before = json.loads(requests.get("scene.json", {}).body)
    requests.records.first.find_scene(0).about.effects = {"encoder.1.self": [0.25, 0.5, 0.75]}
    after = json.loads(requests.get("scene.json", {}).body)
    requests.close()
    assert {head["effect"] for one in before["attentions"] for head in one["heads"]} == {None}
    assert [head["effect"] for head in after["attentions"][1]["heads"]] == [0.25, 0.5, 0.75]
    assert before["start"] == after["start"]


def test_maps_windows_rows_and_columns_are_the_weights(server, record):
    name = "encoder.1.self"
    weights = weights_of(record[name])[2]
    header, found = numbers(server, "map", name=name, head=2)
    torch.testing.assert_close(found.view(header["rows"], header["columns"]), weights, **CLOSE)
    window = {"q0": 10, "q1": 47, "k0": 3, "k1": 40, "height": 5, "width": 1}
    header, found = numbers(server, "window", name=name, head=2, **window)
    assert (header["rows"], header["columns"], header["exact"], header["blocks"]) == (8, 37, True, [5, 1])
    expected = torch.stack([weights[q : min(q + 5, 47), 3:40].sum(0) for q in range(10, 47, 5)])
    torch.testing.assert_close(found.view(8, 37), expected, **CLOSE)
    header, found = numbers(server, "row", name=name, head=2, query=50)
    torch.testing.assert_close(found, weights[50], **CLOSE)
    assert header["top"][0][0] == int(weights[50].argmax())
    assert header["length"] == 67
    header, found = numbers(server, "column", name=name, head=2, key=5)
    torch.testing.assert_close(found, weights[:, 5], **CLOSE)
    assert header["received"] == pytest.approx(float(weights[:, 5].sum()), abs=1e-5)


def test_thumbnails_are_bytes(server):
    status, body, _ = ask(server, "thumbs?name=encoder.0.self")
    line, _, raw = body.partition(b"\n")
    assert status == 200
    assert json.loads(line) == {"size": 24, "heads": 3}
    assert len(raw) == 3 * 24 * 24


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "localhost.evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "127.0.0.1:{port}@evil.example",
        "127.0.0.1:",
        "127.0.0.1:1234567",
        "127.0.0.1:１",
        "127.0.0.2:{port}",
        "",
        "0.0.0.0:{port}",
    ],
)
def test_other_hosts_are_refused(server, host):
    sent = host.format(port=server.port).encode().decode("latin")
    status, body, _ = ask(server, "scene.json", headers={"Host": sent})
    assert status == 403
    assert b"encoder" not in body


def test_two_hosts_or_none_are_refused(server):
    for hosts in ((), (f"127.0.0.1:{server.port}", "evil.example")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
            lines = [
                f"GET /{server.token}/scene.json HTTP/1.1",
                *(f"Host: {host}" for host in hosts),
                "Connection: close",
            ]
            plain.sendall("\r\n".join([*lines, "", ""]).encode())
            assert b" 403 " in plain.recv(200)


@pytest.mark.parametrize("host", ["localhost:{port}", "localhost:9000", "127.0.0.1:1", "127.0.0.1", "[::1]:9000"])
def test_every_name_and_port_of_this_machine_is_answered(server, host):
    host = host.format(port=server.port)
    assert ask(server, "scene.json", headers={"Host": host})[0] == 200
    assert ask(server, "scene.json", headers={"Host": host, "Origin": f"http://{host}"})[0] == 200
    for origin in (f"https://{host}", f"http://{host}0", "http://localhost:9", "http://evil.example", "null"):
        assert ask(server, "scene.json", headers={"Host": host, "Origin": origin})[0] == 403


@contextmanager
def forwarded(port: int) -> Iterator[int]:
    """Another port of this machine from which bytes go to `port` and back, as `ssh -L` does it."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as far:
                back = threading.Thread(target=self.copy, args=(far, self.request))
                back.start()
                self.copy(self.request, far)
                back.join()

        def copy(self, one: socket.socket, other: socket.socket) -> None:
            with suppress(OSError):  # either side may have closed its end already
                while data := one.recv(65536):
                    other.sendall(data)
                other.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
        yield listening.server_address[1]
        listening.shutdown()


def test_a_forwarded_port_works_as_with_ssh(live):
    with forwarded(live.port) as port:
        for host in (f"localhost:{port}", f"127.0.0.1:{port}"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", f"/{live.token}/scene.json", headers={"Host": host})
            assert json.loads(connection.getresponse().read())["live"]
            connection.close()
            body, headers = json.dumps({"text": "da ba"}), {"Host": host, "Content-Type": "application/json"}
            for origin, status in ((f"http://{host}", 200), (live.url[:-1], 403), ("http://evil.example", 403)):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                connection.request("POST", f"/{live.token}/look", body, {**headers, "Origin": origin})
                reply = connection.getresponse()
                assert (reply.status, bool(reply.read())) == (status, True)
                connection.close()


def test_other_sites_are_refused_but_a_link_may_lead_here(server):
    for site in ("cross-site", "same-site"):
        assert ask(server, "scene.json", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})[0] == 403
    assert ask(server, "", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 200
    assert ask(server, "scene.json", headers={"Sec-Fetch-Site": "same-origin"})[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/scene.json",
        "/wrong/scene.json",
        "/{token}",
        "/{token}/../server.py",
        "/{token}/%2e%2e/server.py",
        "/{token}/..%2fserver.py",
        "/{token}/page/app.js",
        "/{token}//app.js",
        "/{token}/app.js/",
        "/{half}/scene.json",
        "/{token}\\scene.json",
        "/{token}/server.py",
        "/{token}/etc/passwd",
        "/{token}/.",
        "/{token}/C:%5Cx",
    ],
)
def test_no_path_leads_anywhere_else(server, path):
    status, body, _ = ask(server, path.format(token=server.token, half=server.token[:-1]))
    assert status in (400, 404)
    assert set(json.loads(body)) == {"error"}


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("map?name=encoder.9.self&head=0", "encoder.9.self"),
        ("map?name=encoder.0.self", "head must be a whole number"),
        ("map?name=encoder.0.self&head=7", "not 7"),
        ("map?name=encoder.0.self&head=１", "whole number"),
        ("map?name=encoder.0.self&head=1e9", "whole number"),
        ("row?name=encoder.0.self&head=0&query=67", "from 0 to 66, got 67"),
        ("column?name=encoder.0.self&head=0&key=-1", "from 0 to 66, got -1"),
        ("window?name=encoder.0.self&head=0&q0=0&q1=9&k0=0&k1=9&height=0&width=1", "at least one"),
        ("window?name=encoder.0.self&head=0&q0=9&q1=9&k0=0&k1=9&height=3&width=3", "at least one"),
        (
            "window?name=encoder.0.self&head=0&q0=0&q1=67&k0=0&k1=67&height=99999999999&width=99999999999",
            "a block has at most 134 queries or keys",
        ),
        ("window?name=encoder.0.self&head=0&q0=0&q1=67&k0=0&k1=67&height=1&width=135", "got 1 × 135"),
        ("scene.json?view=1", "has views 0 to 0, so there is no view 1"),
        ("nothing", "unknown request 'nothing'"),
    ],
)
def test_questions_that_make_no_sense_get_one_line(server, path, error):
    status, body, _ = ask(server, quote(path, safe="?&=."))
    assert status == 400
    assert error in json.loads(body)["error"]
    assert "\n" not in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://127.0.0.1:{port}", "Content-Type": "text/plain"}, 415),
        ({"Origin": "http://127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": "x"}, 411),
        (
            {
                "Origin": "http://127.0.0.1:{port}",
                "Content-Type": "application/json",
                "Content-Length": str(MAX_BODY + 1),
            },
            413,
        ),
        ({"Origin": "http://127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": "9" * 40}, 413),
        ({"Origin": "http://127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": "9" * 5000}, 413),
        ({"Origin": "http://127.0.0.1:{port}", "Content-Type": "application/json", "Host": "evil.example"}, 403),
        ({}, 403),
    ],
)
def test_orders_from_elsewhere_or_too_large_are_refused(server, headers, status):
    sent = {name: value.format(port=server.port) for name, value in headers.items()}
    assert ask(server, "look", "POST", b'{"text": "x"}', sent)[0] == status


@pytest.mark.parametrize(
    ("origin", "status"), [("http://127.0.0.1:{port}", 200), ("http://evil.example", 403), ("null", 403)]
)
def test_nobody_else_may_ask(server, origin, status):
    assert ask(server, "scene.json", headers={"Origin": origin.format(port=server.port)})[0] == status


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_orders_that_are_no_json_are_refused(server, body):
    headers = {"Origin": f"http://127.0.0.1:{server.port}", "Content-Type": "application/json"}
    assert ask(server, "look", "POST", body, headers)[0] == 400


def test_other_methods_are_unknown(server):
    for method in ("PUT", "DELETE", "OPTIONS", "HEAD"):
        assert ask(server, "scene.json", method)[0] == 501


def test_it_listens_on_this_machine_alone_and_every_token_is_another(record, server):
    assert server._server.server_address[0] == "127.0.0.1"
    assert urlsplit(server.url).hostname == "127.0.0.1"
    with open_record(record, browser=False) as other:
        assert other.token != server.token
        assert len(other.token) >= 32
        assert ask(other, f"/{server.token}/scene.json")[0] == 404


def test_many_may_ask_at_once(server, record):
    weights = {name: weights_of(record[name]) for name in record.names}
    wrong: list[Any] = []

    def worker(number: int) -> None:
        name, head, query = record.names[number % 2], number % 3, 3 + number
        try:
            torch.testing.assert_close(
                numbers(server, "row", name=name, head=head, query=query)[1], weights[name][head, query], **CLOSE
            )
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_closed_server_is_gone(record):
    server = open_record(record, browser=False)
    address = ("127.0.0.1", server.port)
    open_before = http.client.HTTPConnection(*address, timeout=20)
    for _ in range(2):  # on one connection, which browsers keep open
        open_before.request("GET", f"/{server.token}/style.css")
        assert open_before.getresponse().read()
    server.close()
    assert open_before.sock.recv(1) == b""  # closed there
    open_before.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, timeout=2).close()
    assert not server._thread.is_alive()


def test_a_browser_that_leaves_in_the_middle_disturbs_nobody(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as plain:
        plain.sendall(f"GET /{server.token}/map?name=encoder.0.self&head=0 HTTP/1.1\r\nHost: 127".encode())
    assert ask(server, "scene.json")[0] == 200


def test_what_cannot_be_shown_is_said_before_anything_listens():
    with pytest.raises(RecordError, match="contains no attention"):
        open_record(Record(), browser=False)


def test_without_a_model_nothing_can_be_changed(server):
    status, content = post(server, "look", {"text": "x"})
    assert status == 400
    assert "no model is loaded" in content["error"]


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    answerer = learned()
    predictor = Predictor(answerer.model, TASK, answerer.processor, name="toy")
    alive = LiveModel.from_predictor(predictor)
    with open_record(alive.look("ba da"), live=alive, browser=False) as server:
        yield server


def test_a_model_reads_new_text_and_old_pages_keep_theirs(live):
    first = json.loads(ask(live, "scene.json")[1])
    status, scene = post(live, "look", {"text": "da ba da"})
    assert status == 200
    assert scene["live"]
    assert scene["id"] != first["id"]
    name = first["attentions"][0]["name"]
    for one in (first, scene):
        header, _ = numbers(live, "map", name=name, head=0, scene=one["id"])
        assert header["rows"] == len(one["axes"]["source"]["tokens"])
    assert json.loads(ask(live, "scene.json")[1])["id"] == first["id"]  # a new page does not see what another one reads
    assert post(live, "look", {"text": "  "})[0] == 400
    assert post(live, "look", {"text": 5})[0] == 400


def look(server: Server, text: str, **content: Any) -> dict[str, Any]:
    status, scene = post(server, "look", {"text": text, **content})
    assert status == 200, scene
    return scene


def test_a_record_is_kept_until_its_page_shows_another_one(live):
    old = look(live, "da ba")
    freed = weakref.ref(live.requests.records.find(old["id"]).record)
    new = look(live, "ba ba da", replaces=old["id"])
    assert ask(live, f"scene.json?scene={old['id']}")[0] == 200  # the page may not have the new one yet
    assert ask(live, f"scene.json?scene={new['id']}")[0] == 200
    status, body, _ = ask(live, f"scene.json?scene={old['id']}")
    assert (status, json.loads(body)["error"]) == (410, "this text is no longer kept by the server; enter it again")
    free_memory()
    assert freed() is None
    assert ask(live, f"scene.json?scene={new['id']}")[0] == 200
    for strange in (7, ["x"], {"a": 1}, new["id"] * 9):
        assert ask(live, f"scene.json?scene={look(live, 'da', replaces=strange)['id']}")[0] == 200


def test_of_many_pages_those_keep_their_texts_that_were_used_last(record, monkeypatch):
    large = list[bool]()
    monkeypatch.setattr(page_requests, "MAX_RECORDS", 2)
    monkeypatch.setattr(page_requests, "LARGE_RECORD", -1)
    monkeypatch.setattr(page_requests, "free_memory_soon", lambda: large.append(True))
    records = KeptRecords(record, Scene)
    one, other = (records.add(record, None).id for _ in range(2))
    assert records.find(one).id == one
    assert large == []
    third = records.add(record, None).id
    assert large == [True]
    assert records.find(None) is records.find(records.first.id) is records.first
    assert [records.find(name).id for name in (one, third)] == [one, third]
    for name in (other, "1", ""):
        with pytest.raises(RecordGone, match="no longer kept"):
            records.find(name)


class Pause:
    """A function that waits until another request was answered, and knows whether it had to."""

    def __init__(self, function: Callable[..., Any], chosen: Callable[..., bool]) -> None:
        self.function, self.chosen = function, chosen
        self.reached, self.go_on, self.waited = threading.Event(), threading.Event(), False

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.chosen(*args):
            self.reached.set()
            self.waited = self.go_on.wait(30)  # false if the other request waits for this one
        return self.function(*args, **options)

    @contextmanager
    def during(self, work: Callable[[], Any]) -> Iterator[None]:
        """What is done within it happens while `work` waits."""
        thread = threading.Thread(target=work)
        thread.start()
        assert self.reached.wait(20)
        try:
            yield
        finally:
            self.go_on.set()
            thread.join()
        assert self.waited


def test_numbers_of_one_record_come_while_another_is_computed(live, monkeypatch):
    slow, other = look(live, "da ba da ba da"), look(live, "ba")
    query = {"name": slow["attentions"][0]["name"], "head": 0}
    rows = len(slow["axes"]["source"]["tokens"])
    pause = Pause(AttentionMap.sum_overview, lambda map, head: map.counts[0] == rows)
    monkeypatch.setattr(AttentionMap, "sum_overview", lambda *args: pause(*args))
    with pause.during(lambda: numbers(live, "map", **query, scene=slow["id"])):
        assert numbers(live, "map", **query, scene=other["id"])[0]["rows"] < rows
        assert look(live, "da")["id"]


def test_short_texts_are_read_while_the_model_reads_a_long_one(live, monkeypatch):
    model, long = live.requests.live, "da ba da ba da"
    kind = type(model.tracer)
    pause = Pause(kind.traces, lambda tracer, text: text == long)
    monkeypatch.setattr(kind, "traces", lambda *args, **options: pause(*args, **options))
    monkeypatch.setattr(live_model, "LONG_TEXT", 9)
    found: list[dict[str, Any]] = []
    with pause.during(lambda: found.append(look(live, long))):
        scene = look(live, "da ba")
        off = [{"name": one["name"], "heads": [0, 1, 2, 3]} for one in scene["attentions"]]
        assert post(live, "ablate", {"off": off, "scene": scene["id"]})[0] == 200
    monkeypatch.undo()
    alone = look(live, long)  # in the lane of short texts
    for name in ("output", "axes"):  # what was switched off meanwhile was on for the long text
        assert found[0][name] == alone[name]


def test_the_effects_of_heads_let_others_run_the_model_in_between(live, monkeypatch):
    model, done = live.requests.live, list[str]()
    record = model.look("ba da")

    def measure(model_of_lane: Any, run: Callable[[], float], names: list[str], progress: Any) -> dict[str, Any]:
        thread = threading.Thread(target=lambda: done.append(look(live, "da")["id"]))
        thread.start()
        until(lambda: len(model.short._queue) == 2)
        progress(1, 2)
        until(lambda: len(done) == 1)
        return {}

    monkeypatch.setattr(live_model, "head_effects", measure)
    assert model.measure_effects(record) == {}


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that another thread does."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_request_ends_when_its_browser_leaves_and_those_of_others_go_on(live):
    lane, answers = live.requests.live.short, list[str]()
    body = json.dumps({"text": "da ba"}).encode()
    headers = {"Origin": live.url[:-1].rpartition("/")[0], "Content-Type": "application/json"}
    staying = threading.Thread(target=lambda: answers.append(look(live, "ba")["id"]))
    leaving = http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)
    with lane.turn():
        leaving.request("POST", f"/{live.token}/look", body, headers)
        until(lambda: len(lane._queue) == 2)
        staying.start()
        until(lambda: len(lane._queue) == 3)
        leaving.close()
        until(lambda: len(lane._queue) == 2)
    staying.join()
    assert len(answers) == 1


def test_a_head_that_is_switched_off_changes_the_loss_and_is_on_again_afterwards(live):
    scene = json.loads(ask(live, "scene.json")[1])
    cross = [one for one in scene["attentions"] if one["kind"] == "cross"]
    off = [{"name": one["name"], "heads": [head["number"] for head in one["heads"]]} for one in cross]
    status, without = post(live, "ablate", {"off": off, "scene": scene["id"]})
    assert status == 200
    assert without["loss"][0] == pytest.approx(scene["output"]["loss"])
    assert without["loss"][1] > without["loss"][0] + 0.1
    assert without["text"] != without["before_text"]
    assert without["text"] != scene["output"]["text"]
    status, again = post(live, "ablate", {"off": [], "scene": scene["id"]})
    assert again["loss"][1] == pytest.approx(again["loss"][0])
    assert again["text"] == scene["output"]["text"]
    name = cross[0]["name"]
    lists = [[99], [[1]], [{}], ["0"], [True], [1.0], [10**400]]
    wrong = [None, [5], [{"name": "encoder.9.self", "heads": [0]}], *([{"name": name, "heads": one}] for one in lists)]
    for one in wrong:
        status, content = post(live, "ablate", {"off": one})
        assert status == 400, one
        assert "\n" not in content["error"]


def test_effects_of_all_heads_can_be_asked_for(live):
    content = json.loads(ask(live, "effects")[1])["effects"]
    scene = json.loads(ask(live, "scene.json")[1])
    heads = {one["name"]: [head["effect"] for head in one["heads"]] for one in scene["attentions"]}
    assert heads.keys() == content.keys()
    assert all(len(heads[name]) == len(values) for name, values in content.items())
    assert max(value for values in content.values() for value in values) > 0.01


def test_translators_are_shown_with_norms():
    with open_record(translator(), browser=False) as server:
        header, _ = numbers(server, "row", name="decoder.0.cross", head=1, query=2)
        assert header["top"][0][2] > 0


def test_a_live_model_measures_norms_though_it_has_hooks_that_end_its_requests():
    live = LiveModel.from_predictor(load("poems-zh"), norms=True)
    record = live.look("月")
    assert all(record[name].norms is not None for name in record.names)


def test_the_page_knows_in_chinese_what_the_server_refuses(record: Record, live: Server):
    """What is said here must be found there word for word, but for what stands in braces."""
    chinese = (
        (PAGE / "words" / "chinese.js").read_text(encoding="utf-8").partition("problems: {")[2].partition("\n  },")[0]
    )
    known = re.findall(r'^    "(.+?)":\s+"', chinese, re.M)
    patterns = [re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(phrase))) for phrase in known]
    alone, model = PageRequests(record), live.requests.live
    asked = PageRequests(record, live=model)
    told = [
        lambda: alone.get("scene.json", {"scene": "7"}),
        lambda: alone.post("look", {"text": "a"}),
        lambda: asked.post("look", {"text": " "}),
        lambda: asked.post("look", {"text": "a" * (MAX_CHARACTERS + 1)}),
        lambda: asked.post("ablate", {"off": []}),
    ]
    for one in told:
        with pytest.raises(ClearheadError) as refused:
            one()
        assert sum(bool(pattern.fullmatch(str(refused.value))) for pattern in patterns) == 1, refused.value
    alone.close()
    asked.close()
