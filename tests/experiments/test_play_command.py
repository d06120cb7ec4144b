"""wdjax play."""

import functools
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from websockets.sync.client import connect

from wdjax.experiments.cli import main
from wdjax.experiments.commands import play as command
from wdjax.signals import STOPPED


class Served:
    url, events = "http://127.0.0.1:1/?token=x", ()

    def wait(self):
        self.events += ("wait",)
        raise KeyboardInterrupt

    def close(self):
        self.events += ("close",)


def test_play_prints_the_address_and_ctrl_c_ends_it(monkeypatch, capsys, tmp_path):
    server, started, opened = Served(), [], []

    def start(*given, compiling):
        started.append(given)
        compiling()
        return server

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(command, "play_live", start)
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    with pytest.raises(SystemExit) as ended:
        main(["play", "runs/a@best", "--open", "--port", "80", "--seed", "3", "--trust", "mine"])
    assert ended.value.code == STOPPED
    assert started == [("runs/a@best", 80, False, None, 3, ("mine",))]
    assert opened == [server.url]
    assert server.events == ("wait", "close")
    assert capsys.readouterr().out.splitlines() == [
        "Compiling the game, which takes some seconds",
        f"Play at {server.url}  (Ctrl-C ends)",
        "Stopping",
    ]


def test_play_without_websockets_names_the_extra(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "websockets.sync.server", None)
    with pytest.raises(SystemExit) as ended:
        main(["play", "cartpole_ppo"])
    assert ended.value.code == 2
    assert 'pip install "wdjax[play]"' in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_a_server_in_use(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "wdjax.experiments.cli", "play", "continuous_mountain_car_ddpg"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # processes that a shell starts in the background ignore SIGINT, such as pytest
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        lines = iter(process.stdout.readline, "")
        url = next(found[0] for line in lines if (found := re.search(r"http\S+", line)))
        with urllib.request.urlopen(url, timeout=30) as page:
            assert b"live.socket" in page.read()
        address = url.replace("http", "ws").replace("/?", "/game?")
        with connect(address, origin=url.split("/?")[0]) as game:
            game.recv(timeout=10)  # the evaluation of its average has started
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (STOPPED, "")
