"""The server of `wdjax play`: requests that it refuses, games that it runs, and its page."""

import contextlib
import http.client
import http.server
import json
import signal
import socket
import sys
import threading
import time
import types
from urllib.parse import urlsplit

import pytest
from browser import browser, in_a_browser
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import wdjax
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.live.match import MOST_AHEAD, Match
from wdjax.train.live.server import FAILED, FULL, MALFORMED, MOST_PAGES, page, run_match

CONFIG = TrainConfig(
    env="tag_gridworld",
    env_params={"num_taggers": 1, "episode_length": 40},
    policies={"tagger": PolicyConfig(), "runner": PolicyConfig()},
    num_envs=1,
    rollout_length=8,
)


@pytest.fixture(scope="module")
def server(quick_compile):
    started = wdjax.play_live(CONFIG, fps=100)
    yield started
    started.close()


def parts(server):
    """Return (port, query) of the page."""
    address = urlsplit(server.url)
    assert address.hostname == "127.0.0.1"
    return address.port, address.query


def get(server, path, **headers):
    """Return (status, body) of a request with any path and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", parts(server)[0], timeout=10)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    return response.status, response.read().decode()


def game(server, path=None, **options):
    port, query = parts(server)
    options = {"origin": f"http://127.0.0.1:{port}", "close_timeout": 0.2} | options
    return connect(f"ws://127.0.0.1:{port}{path or f'/game?{query}'}", compression=None, **options)


def status(frame):
    header = json.loads(frame[4 : 4 + int.from_bytes(frame[:4], "little")])
    return header["live"] | {"time": header["captions"][-1]}


def receive(connection):
    """Return the status of the next frame, and confirm that it was drawn."""
    shown = status(connection.recv(timeout=10))
    connection.send(json.dumps({"drawn": shown["frame"]}))
    return shown


def frames_until(connection, condition, most=400):
    for _ in range(most):
        shown = receive(connection)
        if condition(shown):
            return shown
    raise AssertionError("never")


def refused(server, path=None, **options):
    """Return the status of a refused game."""
    with pytest.raises(InvalidStatus) as error, game(server, path, **options):
        pass
    return error.value.response.status_code


def closed(connection):
    """Return (code, reason) with which the server closes a game."""
    with pytest.raises(ConnectionClosed) as error:  # noqa: PT012
        while True:
            connection.recv(timeout=10)
    return error.value.rcvd.code, error.value.rcvd.reason


# --- the page ---


def test_the_page_is_served_with_its_token_only(server):
    _, query = parts(server)
    assert get(server, f"/?{query}") == (200, page())
    assert page().count("EPISODE_DATA") == 0
    for wrong in (
        "",
        "?",
        "?token=",
        "?token=x",
        f"?{query}x",
        f"?other&{query[:-1]}",
        "?token=%ff",
    ):
        code, text = get(server, f"/{wrong}")
        assert (code, "wdjax play" in text, "<script>" in text) == (403, True, False)


@pytest.mark.parametrize("host", [
    "example.org", "example.org:80", "127.0.0.1.example.org", "localhost.example.org",
    "evil@localhost", "0.0.0.0", "[::1]", "localhost:80:80", "localhost:", "",
])  # fmt: skip
def test_a_foreign_host_is_refused(server, host):
    _, query = parts(server)
    assert get(server, f"/?{query}", Host=host)[0] == 403
    assert get(server, f"/?{query}", Host="localhost")[0] == 200


@pytest.mark.parametrize("path", [
    "/../pyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/game/..", "/player.html",
    "/?/../../etc/passwd", "/..%5c..%5cetc", "/index.html", "http://127.0.0.1/etc/passwd", "//[",
])  # fmt: skip
def test_no_path_leads_to_a_file(server, path):
    _, query = parts(server)
    assert get(server, f"{path}{'&' if '?' in path else '?'}{query}")[0] in (200, 403, 404)
    body = get(server, f"{path}{'&' if '?' in path else '?'}{query}")[1]
    assert body == page() or len(body) < 100


@pytest.mark.parametrize("request_bytes", [
    b"\0\xff\r\n\r\n", b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"b" * 100_000,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: example.org\r\n\r\n", b"",
])  # fmt: skip
def test_malformed_requests_do_not_stop_the_server(server, request_bytes):
    port, query = parts(server)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request_bytes)
        connection.shutdown(socket.SHUT_WR)
        try:
            answer = connection.recv(100)
        except ConnectionError:
            answer = b""
    assert b" 200 " not in answer
    assert get(server, f"/?{query}")[0] == 200


# --- games ---


def test_another_origin_is_refused(server):
    port, query = parts(server)
    for origin in (
        None, "null", "http://example.org", f"http://localhost:{port}", f"https://127.0.0.1:{port}",
        "http://127.0.0.1", f"http://127.0.0.1:{port + 1}", f"http://127.0.0.1:{port}.example.org",
    ):  # fmt: skip
        assert refused(server, origin=origin) == 403
    assert get(server, f"/?{query}", Origin="http://example.org")[0] == 403
    headers = {"Origin": "http://example.org"}
    assert refused(server, additional_headers=headers) == 403


def test_a_game_needs_the_token_and_its_path(server):
    _, query = parts(server)
    assert refused(server, "/game") == 403
    assert refused(server, "/game?token=x") == 403
    assert refused(server, f"/other?{query}") == 404


def test_a_game_shows_an_episode_and_its_result(server):
    with game(server) as one:
        one.send('{"agent": ["runner", 0]}')
        one.send('{"player": ["tagger", "random"]}')
        one.send('{"speed": 8}')
        shown = frames_until(one, lambda shown: shown["over"])
        assert len(shown["results"]) == 1


def test_two_pages_have_two_games(server):
    with game(server) as one, game(server) as other:
        one.send('{"paused": true}')
        frames_until(one, lambda shown: shown["paused"])
        other.send('{"speed": 8}')
        first = receive(other)["time"]
        frames_until(other, lambda shown: shown["time"] != first)
        with pytest.raises(TimeoutError):
            one.recv(timeout=0.2)
        one.send('{"restart": true}')
        assert status(one.recv(timeout=10))["time"].startswith("step 0")


@pytest.mark.parametrize("message", [
    b"\0\1", "{", '{"keys": "Enter"}', "[" * 3000, f'{{"agent": ["{"é" * 200}", 0]}}',
    '{"agent": ["\\ud800", 0]}',
])  # fmt: skip
def test_a_malformed_message_ends_its_game_only(server, message):
    with game(server) as good, game(server) as bad:
        bad.send(message)
        code, reason = closed(bad)
        assert code == MALFORMED
        assert reason.startswith("malformed message")
        frames_until(good, lambda shown: True)


def test_an_oversized_message_ends_its_game(server):
    with game(server) as one:
        one.send(json.dumps({"keys": ["a" * 10_000]}))
        assert closed(one)[0] == 1009
    with game(server) as one:
        with contextlib.suppress(ConnectionClosed):
            one.send(["a" * 100] * 1_000)  # fragments
        assert closed(one)[0] == 1009


class Flood:
    """A connection on which another message has always arrived."""

    def __init__(self):
        self.messages, self.frames = 0, 0

    def recv(self, timeout):
        self.messages += 1
        assert self.messages < 1_000_000, "no step"
        return json.dumps({"drawn": self.frames})

    def send(self, frame):
        self.frames += 1
        if self.frames == 4:
            raise EOFError


def test_floods_do_not_stop_a_game(server):
    flood = Flood()
    with pytest.raises(EOFError):
        run_match(flood, Match(server.table, 30, 0))
    assert flood.messages > 3


def test_games_are_limited_and_closed_pages_leave_room(server):
    with contextlib.ExitStack() as stack:
        games = [open_game(server, stack) for _ in range(MOST_PAGES)]
        with game(server) as late:
            assert closed(late) == (FULL, f"{MOST_PAGES} games are open, close another page")
        games[0].close()
        games[1].socket.sendall(b"\x81\xfe\x10")  # the start of a message
        games[1].socket.shutdown(socket.SHUT_RDWR)  # without a closing handshake
        for _ in range(2):
            open_game(server, stack)


def open_game(server, stack):
    """Return a game, after waiting for room: games of closed pages end within a second."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        one = stack.enter_context(game(server))
        with contextlib.suppress(ConnectionClosed):
            receive(one)
            return one
    raise AssertionError("no room")


def test_an_error_of_the_environment_ends_the_game_with_its_message(server, monkeypatch):
    def broken(states):
        raise RuntimeError("no picture")

    with contextlib.ExitStack() as stack:
        one = open_game(server, stack)
        monkeypatch.setattr(server.table, "scene", broken)
        assert closed(one) == (FAILED, "RuntimeError: no picture")


def test_the_server_listens_on_this_machine_and_tokens_differ(server):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", parts(server)[0]), timeout=10)
    assert server._repr_html_().startswith(f'<iframe src="{server.url}"')
    with pytest.raises(OSError, match="in use"):
        wdjax.play_live(CONFIG, port=parts(server)[0])
    other = wdjax.play_live(CONFIG)
    try:
        assert parts(other)[1] != parts(server)[1]
        assert get(server, f"/?{parts(other)[1]}")[0] == 403
    finally:
        other.close()
    with pytest.raises(ConnectionRefusedError):
        get(other, "/")


def test_a_game_waits_for_a_page_that_does_not_draw(server):
    with game(server) as one, game(server) as other:
        frames = [one.recv(timeout=10) for _ in range(MOST_AHEAD)]
        with pytest.raises(TimeoutError):
            one.recv(timeout=0.3)
        frames_until(other, lambda shown: shown["frame"] > MOST_AHEAD)
        one.send(json.dumps({"drawn": status(frames[-1])["frame"]}))
        one.recv(timeout=10)


def test_close_ends_open_games_at_once():
    other = wdjax.play_live(CONFIG)
    with game(other) as one, game(other, max_queue=1) as unread:
        unread.send('{"speed": 8}')
        receive(one)
        before = time.monotonic()
        other.close()
        assert time.monotonic() - before < 3
        assert closed(one)[0] == 1001


def test_ctrl_c_ends_the_wait_even_if_another_thread_receives_it(server):
    def interrupt():
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def give_up():  # ends a wait that did not notice the interrupt
        too_late.set()
        server.close()

    too_late, closing = threading.Event(), threading.Timer(20, give_up)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        closing.start()
        threading.Timer(0.2, interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            server.wait()
        assert not too_late.is_set()
    finally:
        closing.cancel()
        signal.signal(signal.SIGINT, before)


class Shell:
    """The shell of a notebook: `run` begins a cell."""

    def __init__(self):
        self.callbacks, self.events, self.cell = [], self, None

    def get_parent(self):
        return {"metadata": {"cellId": self.cell}}

    def register(self, event, function):
        assert event == "pre_run_cell"
        self.callbacks.append(function)

    def unregister(self, event, function):
        self.callbacks.remove(function)

    def run(self, cell):
        self.cell = cell
        for function in self.callbacks[:]:
            function(types.SimpleNamespace(cell_id=cell))


def test_a_notebook_cell_that_runs_again_closes_its_games_only(monkeypatch):
    shell = Shell()
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    shell.run("a")
    first, other = wdjax.play_live(CONFIG), wdjax.play_live(CONFIG)
    shell.run("b")
    second = wdjax.play_live(CONFIG)
    assert [get(one, "/")[0] for one in (first, other, second)] == [403] * 3  # they run
    shell.run("a")
    for closed_one in (first, other):
        with pytest.raises(ConnectionRefusedError):
            get(closed_one, "/")
    assert get(second, "/")[0] == 403
    second.close()
    shell.run("b")  # although it is closed
    assert shell.callbacks == []


@pytest.mark.parametrize(("arguments", "error", "words"), [
    ({"port": 70_000}, ValueError, "port = 70000"),
    ({"fps": 0}, ValueError, "fps = 0"),
    ({"run": "tag_smal"}, ValueError, "did you mean 'tag_small'"),
    ({"run": "no/such"}, FileNotFoundError, "contains no run"),
])  # fmt: skip
def test_invalid_arguments_raise(arguments, error, words):
    with pytest.raises(error, match=words):
        wdjax.play_live(
            **({"run": CONFIG} | arguments), compiling=lambda: pytest.fail("compiles too early")
        )


# --- in a browser ---

CHOOSE = "const s = document.querySelector('{}'); s.value = '{}'; s.onchange({{target: s}})"
# the cell of the visitor's runner
PLACE = """const m = page.marks.find(m => m.group == 'runner');
const [x, y] = [m.x, m.y].map(array => Math.round(get(array, state.frame, 0))); return """
# the position of a cell in the window, and of the middle of a button
CELL = """const b = by('world').getBoundingClientRect();
return [b.left + view.left + ({} - view.box[0]) * view.sx,
        b.top + view.top + (view.box[3] - {}) * view.sy]"""
BUTTON = """const b = document.querySelector('#keys [data-key={}]').getBoundingClientRect();
return [b.left + b.width / 2, b.top + b.height / 2]"""


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 400)])
def test_a_visitor_plays_in_a_browser(server, tmp_path, dark, width):
    with browser(tmp_path / "profile", dark=dark, size=(width, 800)) as page:
        page.show(server.url)
        page.wait_for("return state.ready")
        theme = page.run("return document.documentElement.dataset.theme")
        assert theme == ("dark" if dark else "light")
        page.run(CHOOSE.format("#group", "runner"))
        page.wait_for("return live.status.agent[0] == 'runner'")
        page.run(CHOOSE.format("[data-role=tagger]", "random"))
        page.wait_for("return live.status.players.tagger == 'random'")
        page.run(CHOOSE.format("#speed", "0.25"))
        for key, place in (("ArrowLeft", "x == 0"), ("ArrowDown", "y == 0")):
            page.key(key, "keyDown")
            page.wait_for(PLACE + place)
            page.key(key, "keyUp")
        page.wait_for("return !live.keys.length")
        page.touch(page.run(BUTTON.format("ArrowRight")))
        page.wait_for(PLACE + "x > 2")
        page.touch()
        page.wait_for("return !live.keys.length")
        corner = page.run(CELL.format(0, 9))
        page.mouse("mousePressed", *corner)
        page.wait_for(PLACE + "x == 0 && y > 2")
        page.mouse("mouseReleased", *corner)
        page.wait_for("return !live.point")
        page.wait_for("return by('results').textContent.startsWith('Last episodes')", 60)
        page.wait_for("return by('score').textContent.includes('(16 episodes)')", 60)
        for pressed in (True, False):
            page.key(" ", "keyDown")
            page.wait_for(f"return live.status.paused == {str(pressed).lower()}")
        page.run("by('again').click()")
        page.wait_for("return by('caption').textContent.startsWith('step 0')")
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert page.errors() == []
    with game(server) as one:  # the server still runs
        receive(one)


class Notebook(http.server.BaseHTTPRequestHandler):
    """A page of another server that contains the game."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.server.game._repr_html_().encode())


@pytest.mark.slow
@in_a_browser
def test_a_click_in_a_notebook_gives_keys_to_the_game(server, tmp_path, monkeypatch):
    monkeypatch.setattr(Notebook, "log_message", lambda *_: None)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Notebook) as notebook,
        browser(tmp_path / "profile") as page,
    ):
        notebook.game = server
        threading.Thread(target=notebook.serve_forever, daemon=True).start()
        page.show(f"http://localhost:{notebook.server_port}/")
        page.ask("/frame", {"id": 0})
        page.wait_for("return state.ready")
        x, y = page.run(CELL.format(5, 5))
        page.mouse("mousePressed", x + 8, y + 8)  # the page has a margin
        page.mouse("mouseReleased", x + 8, y + 8)
        page.key("ArrowUp", "keyDown")
        page.wait_for("return live.keys[0] == 'ArrowUp'")
        notebook.shutdown()
