"""The server of `wdjax play`: one page and its games, on this machine only.

A request must have a token that is drawn at each start, and a Host of this machine. A game must be
requested by the page itself (Origin). No file is served.
"""

import hmac
import importlib.resources
import itertools
import logging
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from wdjax.checks import one_line, require_integer
from wdjax.drawing.player import require_fps
from wdjax.train.config.schema import TrainConfig
from wdjax.train.learner.learner import Learner, make_learner
from wdjax.train.live.match import Match
from wdjax.train.live.table import Table
from wdjax.train.load import load_config, load_run, preset_path
from wdjax.train.state.state import TrainState

NEEDED = 'wdjax play needs websockets: pip install "wdjax[play]", or only pip install websockets'
HOST = "127.0.0.1"
MOST_PAGES = 8  # games at once
MOST_BYTES = 4_096  # per message
# Reasons for closing a connection (RFC 6455, section 7.4.1)
MALFORMED, FAILED, FULL = 1008, 1011, 1013
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
IFRAME = (
    '<iframe src="{}" style="width: 100%; height: 720px; border: 0" title="wdjax play"></iframe>'
)

Run = str | Path | TrainConfig | tuple[Learner, TrainState]


def play_live(
    run: Run,
    port: int = 0,
    greedy: bool = False,
    fps: float | None = None,
    seed: int = 0,
    trust: Collection[str] = (),
    compiling: Callable[[], None] | None = None,
) -> "LiveServer":
    """Start a page on this machine on which a person controls one agent.

        game = wdjax.play_live("reference:tag_continuous")  # shown in a notebook
        print(game.url)                                     # or open this address
        game.close()

    The other agents are controlled by the policies of the run, scripts of the environment or
    random play. `wdjax.play` instead runs a function as the policy of many replicas, without a
    person.

    Args:
        run: folder of a run, or a bundled run such as "reference:tag_continuous"; (learner, state);
            or, without trained policies, a preset (a name or a YAML file) or a configuration.
        port: port of the page on 127.0.0.1; 0: any free port.
        greedy: whether policies take their most likely actions instead of sampling them.
        fps: steps per second at speed 1; None: `Env.frames_per_second`.
        seed: of start states and actions.
        trust: modules from which the run may import code, as for `load_run`.
        compiling: called when the arguments are valid and the game is about to be compiled, which
            takes seconds.

    Returns:
        A LiveServer, which a notebook shows. Its games run until `close`, or until its cell in a
        notebook runs again.

    Raises:
        ImportError: If websockets is not installed.
        NotImplementedError: If the environment has no scene.
        FileNotFoundError: If the run does not exist.
        OSError: If the port is in use.
        ValueError: If no preset has this name, or another argument is out of range.
        TypeError: If `port` or `seed` is not a whole number.
    """
    try:
        from websockets.sync.server import serve
    except ImportError as error:
        raise ImportError(NEEDED) from error
    require_integer("port", port, 0, 65_535)
    require_integer("seed", seed, 0, 2**32 - 1)
    if fps is not None:
        require_fps(fps)
    learner, state = _load(run, trust)
    table = Table(learner, state, greedy)
    fps = learner.env.frames_per_second if fps is None else fps
    if compiling is not None:
        compiling()
    Match(table, fps, seed).step()  # compiles
    server = LiveServer(table, fps, seed, serve, port)
    _close_with_cell(server)
    return server


def _close_with_cell(server: "LiveServer") -> None:
    """In a Jupyter notebook, close a server before its cell runs again, which frees its port."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    request: Any = getattr(shell, "get_parent", dict)()  # of ipykernel: to run the cell
    cell = request.get("metadata", {}).get("cellId")

    def close(info: Any) -> None:
        if getattr(info, "cell_id", None) == cell:  # since IPython 8.3
            shell.events.unregister("pre_run_cell", close)
            server.close()

    if cell is not None:
        shell.events.register("pre_run_cell", close)


def _load(run: Run, trust: Collection[str]) -> tuple[Learner, TrainState | None]:
    """Return the learner and the state of a run; None for a preset or a configuration."""
    if isinstance(run, tuple):
        return run
    if isinstance(run, TrainConfig):
        return make_learner(run, trust), None
    try:
        preset = preset_path(run)
    except (ValueError, FileNotFoundError):
        if re.fullmatch(r"\w+", str(run)) and not Path(run).exists():
            raise  # names the closest preset
        return load_run(run, trust=trust)
    return make_learner(load_config(preset), trust), None


class LiveServer:
    """The page of `play_live` and its games. It starts at once, in a thread.

    Args:
        table: the environment and its players.
        fps: steps per second at speed 1.
        seed: first seed; each further game has the next one.
        serve: `websockets.sync.server.serve`.
        port: port; 0: any free port.

    Attributes:
        url: address of the page, with the token.
    """

    def __init__(self, table: Table, fps: float, seed: int, serve: Any, port: int):
        self.table, self.fps = table, fps
        self._token, self._seeds = secrets.token_urlsafe(24), itertools.count(seed)
        self._free = threading.BoundedSemaphore(MOST_PAGES)
        # the page shows errors; rejected requests are not logged
        logger = logging.getLogger("wdjax.live")
        logger.setLevel(logging.CRITICAL + 1)
        self._server = serve(
            self._play, HOST, port, process_request=self._admit, compression=None,
            max_size=MOST_BYTES, max_queue=4, open_timeout=2, close_timeout=1, server_header=None,
            logger=logger,
        )  # fmt: skip
        port = self._server.socket.getsockname()[1]
        self.url = f"http://{HOST}:{port}/?token={self._token}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"LiveServer({self.url})"

    def _repr_html_(self) -> str:
        return IFRAME.format(self.url)

    def wait(self) -> None:
        """Wait until the server is closed, or for Ctrl-C."""
        # Another thread may receive SIGINT, which does not end a join: Python raises
        # KeyboardInterrupt here only after the timeout.
        while self._thread.is_alive():
            self._thread.join(timeout=0.2)

    def close(self) -> None:
        """End all games and stop the server."""
        self._server.shutdown()
        self.table.close()

    def _admit(self, connection: Any, request: Any) -> Any:
        """Return the response to a request; None admits a game."""
        path, _, query = request.path.partition("?")
        host, *others = request.headers.get_all("Host") or [""]
        origins = set(request.headers.get_all("Origin"))
        is_here = not others and re.fullmatch(r"(localhost|127\.0\.0\.1)(:\d{1,5})?", host)
        if not is_here or origins - {f"http://{host}"}:
            return connection.respond(403, "This page is for this machine only.\n")
        token = parse_qs(query).get("token", [""])[0].encode("utf8", "replace")
        if not hmac.compare_digest(token, self._token.encode()):
            return connection.respond(403, "The token is wrong. Open the address of wdjax play.\n")
        if path == "/game":
            return None if origins else connection.respond(403, "A game needs an Origin.\n")
        if path != "/":
            return connection.respond(404, "There is no such page.\n")
        response = connection.respond(200, page())
        del response.headers["Content-Type"]
        for name, value in {"Content-Type": "text/html; charset=utf-8", **HEADERS}.items():
            response.headers[name] = value
        return response

    def _play(self, connection: Any) -> None:
        """Run the game of one connection until it closes."""
        from websockets.exceptions import ConnectionClosed

        if not self._free.acquire(blocking=False):
            connection.close(FULL, f"{MOST_PAGES} games are open, close another page")
            return
        try:
            run_match(connection, Match(self.table, self.fps, next(self._seeds)))
        except ConnectionClosed:
            pass
        except ValueError as error:
            connection.close(MALFORMED, _reason(one_line(error)))
        except Exception as error:  # of any type: it may be the environment's code
            connection.close(FAILED, _reason(f"{type(error).__name__}: {one_line(error)}"))
        finally:
            self._free.release()


def _reason(text: str) -> str:
    """Return the start of a text that fits into a closing frame, which has 123 bytes for it."""
    return text.encode("utf8", "replace")[:123].decode("utf8", "ignore")


def run_match(connection: Any, match: Match) -> None:
    """Step a match and send its frames until the connection closes.

    Raises:
        ValueError: If a message is malformed.
    """
    last = time.monotonic()
    connection.send(match.frame())
    while True:
        wait = match.wait
        left = None if wait is None else max(0.0, last + wait - time.monotonic())
        shows, is_due = False, left == 0
        try:
            shows = match.receive(connection.recv(timeout=left))
        except TimeoutError:
            is_due = True
        if is_due:
            match.step()
            now = time.monotonic()
            last = max(last + (wait or 0), now - 0.1)  # catches up on short delays only
        if is_due or shows:
            connection.send(match.frame())


def page() -> str:
    """Return the page: the episode player with the controls of a game."""
    folder = importlib.resources.files("wdjax.drawing")
    player, live = (
        folder.joinpath(name).read_text(encoding="utf8") for name in ("player.html", "live.html")
    )
    return player.replace("EPISODE_DATA", "").replace("</body>", f"{live}</body>")
