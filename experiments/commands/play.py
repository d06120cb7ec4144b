"""wdjax play."""

import dataclasses
import webbrowser
from typing import Annotated

import tyro

from wdjax.console import show
from wdjax.experiments.commands.arguments import Modules, Run, parse, require_run, require_seed
from wdjax.train import play_live


@dataclasses.dataclass(frozen=True)
class PlayArguments:
    """Control one agent in a browser, against trained policies, scripts or random play.

    $ wdjax play runs/a                        print the address of a page on this machine
    $ wdjax play reference:tag_continuous --open
    $ wdjax play tag_small                     a preset, without trained policies

    Ctrl-C ends it. Needs "wdjax[play]". wdjax.play is something else: it runs a function as the
    policy of many replicas.
    """

    run: Run
    """Run folder, FOLDER@best or FOLDER@120; a bundled run, reference:tag_continuous; or a preset,
    without trained policies."""
    open: bool = False
    """Open the page in the default browser."""
    port: int = 0
    """Port of the page on 127.0.0.1; 0: any free port."""
    fps: Annotated[float | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Steps per second at speed 1 (default: frames_per_second of the environment)."""
    greedy: bool = False
    """Policies take their most likely actions instead of sampling them."""
    seed: int = 0
    """Seed for start states and actions."""
    trust: Modules = ()


def play(arguments: list[str]) -> None:
    """Run `wdjax play`."""
    require_run("play", arguments)
    parsed = parse(PlayArguments, "wdjax play", arguments)
    require_seed(parsed.seed)
    server = play_live(
        parsed.run, parsed.port, parsed.greedy, parsed.fps, parsed.seed, parsed.trust,
        compiling=lambda: show("Compiling the game, which takes some seconds"),
    )  # fmt: skip
    try:
        show(f"Play at {server.url}  (Ctrl-C ends)")
        if parsed.open:
            webbrowser.open(server.url)
        server.wait()
    finally:
        show("Stopping")
        server.close()
