"""What commands print and where they keep compiled programs, in hostile surroundings."""

import contextlib
import gc
import io
import os
import signal
import time

import jax
import pytest
import yaml
from jax.experimental.compilation_cache import compilation_cache
from rich.table import Table

from wdjax.checks import one_line, printable
from wdjax.console import Console
from wdjax.experiments import cli

HOSTILE = "a\x1b]0;title\x07b\x1b[31mc\x9b2J\u202ed\udc80\r"
SHOWN = "a\\x1b]0;title\\x07b\\x1b[31mc\\x9b2J\\u202ed\\udc80"


def test_control_characters_are_escaped():
    assert printable(HOSTILE) == SHOWN + "\\r"
    assert printable("Tänzer\u200d 日本\t[x] 😀\n") == "Tänzer\u200d 日本\t[x] 😀\n"
    assert one_line(ValueError(HOSTILE)) == SHOWN


def test_a_console_prints_texts_as_they_are():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=200, color_system=None)
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row("[red]:smile:")
    console.print(table)
    console.print(f"{HOSTILE} [/] :smile:")
    out = file.getvalue()
    assert "[red]:smile:" in out
    shown = SHOWN.replace("\\x07", "")  # rich itself drops bells and carriage returns
    assert out.endswith(f"\n{shown} [/] :smile:\n")
    assert out.startswith(f"  {shown}  \n")
    assert printable(out) == out


@pytest.mark.parametrize("words", [
    ["report", "{}"], ["eval", "{}"], ["render", "{}"], ["export", "{}"],
    ["diff", "{}", "cartpole_ppo"],
    ["train", "{}/config.yaml"], ["train", "{}/config.yaml", "--help", "all"],
    ["sweep", "{}/config.yaml"],
])  # fmt: skip
@pytest.mark.parametrize("config", [
    {"env": "a\x1b[31mb"}, {"a\x1b[31mb": 3},
    {"env": "cartpole", "policies": {"a\x1b[31mb": {"clip": "\x1b[31m"}}},
])  # fmt: skip
def test_no_escape_sequence_of_a_stranger_reaches_the_terminal(tmp_path, words, config, capsys):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with contextlib.suppress(SystemExit):
        cli.main([word.format(tmp_path) for word in words])
    out, err = capsys.readouterr()
    assert out + err
    assert "\x1b[31m" not in out + err


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the compilation cache of this test, a folder that does not exist yet."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    yield tmp_path / "home" / ".cache" / "wdjax"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def is_used(cache):
    cli.cache_compilations()
    return jax.config.jax_compilation_cache_dir == str(cache)


def test_the_compilation_cache_is_private(cache, capsys):
    assert is_used(cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert is_used(cache)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_compilation_cache_that_others_can_write_is_not_used(cache, mode, capsys):
    cache.mkdir(parents=True)
    cache.chmod(mode)
    assert not is_used(cache)
    assert capsys.readouterr().err.startswith(
        f"Warning: the compilation cache is disabled: {cache}"
    )


def test_a_compilation_cache_of_another_user_is_not_used(cache, monkeypatch, capsys):
    cache.mkdir(parents=True, mode=0o755)
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    assert not is_used(cache)
    assert "belongs to another user" in capsys.readouterr().err


def test_a_compilation_cache_that_cannot_be_made_ends_no_command(cache, monkeypatch, capsys):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    assert not is_used(cache)
    monkeypatch.setenv(
        "XDG_CACHE_HOME", "relative"
    )  # would be a folder of the owner of the current one
    assert not is_used("relative/wdjax")
    assert capsys.readouterr().err.count("Warning: the compilation cache is disabled") == 2


class Unclosed:
    def __del__(self):
        raise ValueError("unclosed")


@pytest.mark.parametrize("place", ["callback", "hook"])
def test_a_ctrl_c_that_python_drops_while_it_collects_garbage_comes_again(place, monkeypatch):
    dropped = []

    def interrupt(what, *_):
        if not dropped:
            dropped.append(what if place == "callback" else what.exc_type)
            raise KeyboardInterrupt  # as where a signal comes in a callback of jax or in the hook

    def collect_and_wait():
        if place == "hook":
            Unclosed()
        gc.collect()
        time.sleep(10)  # until the interrupt comes again

    gc.collect()  # garbage of other tests
    callbacks = list(gc.callbacks)
    monkeypatch.setattr("sys.unraisablehook", cli.interrupt_again)
    if place == "hook":
        monkeypatch.setattr("sys.__unraisablehook__", interrupt)
    else:
        gc.callbacks.append(interrupt)
    handler = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            collect_and_wait()
    finally:
        gc.callbacks[:] = callbacks
        signal.signal(signal.SIGINT, handler)
    assert dropped == ["start" if place == "callback" else ValueError]
