"""wdjax report: contents of the page, computed by hand, and the page in a browser."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from browser import browser, in_a_browser
from rich.table import Table

from wdjax.experiments.cli import main
from wdjax.experiments.commands.report import group_runs, of_speed
from wdjax.experiments.over_seeds import interval_of_mean
from wdjax.experiments.report.curves import POINTS, pooled
from wdjax.experiments.report.page import of_terminal
from wdjax.train import Trainer, load_config
from wdjax.train.host.plots import quantities


@pytest.fixture(autouse=True)
def no_user_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))


def a_row(steps, value, **more):
    speed = {
        "seconds": 2.0,
        "compile_seconds": 1.0,
        "env_steps_per_second": 4.0,
        "agent_steps_per_second": 8.0,
    }
    row = {"agent/episode_return": value, "agent/entropy": 0.5, "agent/explained_variance": 0.1}
    return {
        "updates": steps // 8,
        "env_steps": steps,
        "episode_length": 3.0,
        **speed,
        **row,
        **more,
    }


def a_run(folder, values, seed=0, **changes):
    raw = {
        "env": "own:Game",
        "policies": {"agent": {"gamma": 0.9}},
        "num_envs": 8,
        "seed": seed,
        **changes,
    }
    folder.mkdir(parents=True)
    head = {"wdjax": "0.1", "made_with": {"jax": "0.10.2", "device": "NVIDIA <H100>"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(head | raw))
    rows = [a_row(8 * (i + 1), value) for i, value in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_seeds_of_the_same_env_steps_are_pooled_point_by_point():
    runs = [
        [a_row(8, 1.0), a_row(16, None)],
        [a_row(8, 5.0), a_row(16, 7.0)],
        [a_row(8, None), a_row(16, 8.0)],
    ]
    assert pooled(runs, "not/there") is None
    single = pooled(runs[:1], "agent/episode_return")
    assert (single.steps.tolist(), single.middle.tolist(), single.seeds) == ([8], [1.0], 1)
    assert np.isnan([single.low, single.high]).all()
    same = [[a_row(8, x), a_row(16, y)] for x, y in ((1, 2), (3, 2), (8, 2), (100, 2))]
    curve = pooled(same, "agent/episode_return")
    assert curve.middle.tolist() == [5.5, 2.0]  # of four seeds one falls out at either end
    assert (curve.low[0], curve.high[0]) == interval_of_mean([1, 3, 8, 100])[1:]
    assert (curve.low[1], curve.high[1]) == (2.0, 2.0)


def test_a_curve_covers_the_env_steps_of_all_seeds():
    """A curve of two seeds ends with the shorter one."""
    longer = [a_row(0, 0.0), a_row(99, 99.0)]
    curve = pooled([longer, [a_row(33, 3.0), a_row(66, 3.0)]], "agent/episode_return")
    np.testing.assert_allclose(curve.steps, np.linspace(33, 66, POINTS))
    np.testing.assert_allclose(curve.middle[[0, -1]], [18, 34.5])
    assert not np.isnan(curve.low).any()
    same_start = pooled([[*longer, a_row(200, 5.0)], longer], "agent/episode_return")
    assert (curve.seeds, same_start.seeds, same_start.steps[-1]) == (2, 2, 99)
    assert pooled([longer, [a_row(150, 3.0)]], "agent/episode_return") is None


def test_runs_with_different_seeds_and_machines_are_one_group():
    fields = [
        {"seed": 0, "policies.a.gamma": 0.9, "wdjax": "1", "made_with.jax": "2"},
        {"seed": 1, "policies.a.gamma": 0.9},
        {"seed": 0, "policies.a.gamma": 0.5, "updates_per_chunk": 3},
    ]  # fmt: skip
    assert group_runs("abc", fields) == {"gamma 0.9": [0, 1], "gamma 0.5": [2]}
    assert group_runs("ab", fields[:2]) == {"a": [0, 1]}
    fields[2]["policies.a.opponents"] = "x" * 40
    assert group_runs("abc", fields) == {"a": [0, 1], "c": [2]}


def test_a_matrix_of_one_quantity_is_shaded():
    table = Table("a \\ b", "x", "y", title="return")
    table.add_row("p", "-1.50 ± 0.10", "2.50 ± 0.10")
    table.add_row("q", "0.50 ± 0.10", "-")
    assert re.findall(r"blue\) (\d+)%, transparent\)\">(-?[\d.]+) ±", of_terminal(table)) == [
        ("0", "-1.50"), ("45", "2.50"), ("22", "0.50")
    ]  # fmt: skip
    table.title = None  # several quantities
    assert "background" not in of_terminal(table)


def test_a_scheduled_change_is_drawn():
    more = {"agent/entropy_coefficient": 0.01}
    rows = [a_row(8, 1.0, **more, **{"agent/learning_rate": rate}) for rate in (3e-4, 1e-4)]
    found = quantities(rows)
    assert found["learning rate (scheduled)"] == {"agent": "agent/learning_rate"}
    assert not any("entropy coefficient" in label for label in found)
    assert not any("scheduled" in label for label in quantities(rows[:1]))


def test_a_page_of_several_runs_without_playing(tmp_path, capsys):
    runs = [a_run(tmp_path / f"a{seed}", [1.0, 2.0 + seed], seed) for seed in range(2)]
    runs.append(a_run(tmp_path / "<b>", [4.0, 5.0], policies={"agent": {"gamma": 0.5}}))
    main(
        [
            "report",
            *runs,
            "--episodes",
            "0",
            "--players",
            "0",
            "--output",
            str(tmp_path / "new" / "r.html"),
        ]
    )
    assert capsys.readouterr().out.startswith(f"Wrote {tmp_path}/new/r.html (")
    page = (tmp_path / "new" / "r.html").read_text()
    assert "<b>" not in page.replace("<b></b>", "")
    assert not re.search(r"(src|href)=.?https?:", page)
    cells = re.findall(r"<tr>(.*?)</tr>", page)
    lines = [re.findall(r">([^<>]*)</t[dh]>", cell) for cell in cells]
    for line in (
        ["policies.agent.gamma", "0.9", "0.9", "0.5"], ["seed", "0", "1", "0"],
        ["agent/episode_return", "2", "3", "5"], ["a1", "16", "4", "4", "8", "4", "2"],
        ["device", *["NVIDIA &lt;H100&gt;"] * 3],
    ):  # fmt: skip
        assert line in lines
    assert page.count("<svg ") == 5
    assert "band: 95 % interval over seeds" in page
    assert "gamma 0.9 (2 seeds)" in page
    assert "Cross-play" not in page


def test_a_member_of_a_sweep_has_no_speed():
    row = {name: value for name, value in a_row(8, 1.0).items() if "second" not in name}
    assert re.findall(r">([^<>]*)</td>", of_speed(["best"], [[row]]).body) == [
        "best",
        "8",
        *"-----",
    ]


@pytest.mark.parametrize(("arguments", "words"), [
    ([], "wdjax report needs a run, the folder"),
    (["{}/none"], "none contains no run: "),
    (["{}/empty"], "empty has nothing to report yet: metrics.jsonl is empty"),
    (["{}/words"],
        "words/metrics.jsonl, line 2: agent/episode_return = '2': must be a number within the "
        "range of"),
    (["{}/huge"], "huge/metrics.jsonl, line 1: agent/episode_return = 100000"),
    (["{}/steps"], "steps/metrics.jsonl, line 1: env_steps = None: must be a number"),
    (["{}/bytes"], "bytes/metrics.jsonl, line 1, is not valid JSON"),
    (["{}/sweep"], "sweep has nothing to report yet: no chunk is complete"),
    (["{}/sweep", "{}/a"], "must be omitted: report one sweep at a time"),
    (["{}/odd"], "unknown mode in {}/odd/sweep.yaml 'gird': did you mean 'grid'?"),
    (["{}/a", "--output", "a.pdf"], "--output = 'a.pdf': must be a file that ends in .html"),
    (["{}/a", "--players", "-1"], "--players = -1: must be at least 0"),
    (["{}/a", "--episode", "3"], "did you mean --episodes?"),
])  # fmt: skip
def test_bad_input_of_report_is_one_sentence(tmp_path, capsys, arguments, words):
    a_run(tmp_path / "a", [1.0])
    a_run(tmp_path / "empty", [])
    a_run(tmp_path / "words", [1.0, "2"])
    a_run(tmp_path / "huge", [10**400])
    for name, line in {"steps": b'{"updates": 1}\n', "bytes": b"\xff\n"}.items():
        (Path(a_run(tmp_path / name, [1.0])) / "metrics.jsonl").write_bytes(line)
    for name, mode in (("sweep", "grid"), ("odd", "gird")):
        (tmp_path / name).mkdir()
        asked = {"mode": mode, "config": {"env": "own:Game", "policies": {}}}
        (tmp_path / name / "sweep.yaml").write_text(yaml.safe_dump(asked))
    with pytest.raises(SystemExit):
        main(["report", *(word.format(tmp_path) for word in arguments)])
    assert words.format(tmp_path) in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@in_a_browser
def test_the_page_in_a_browser(tmp_path, quick_compile):
    runs = [str(tmp_path / f"run{seed}") for seed in range(2)]
    small = {
        "num_envs": 8,
        "rollout_length": 16,
        "total_env_steps": 512,
        "updates_per_chunk": 1,
        "eval_episodes": 4,
    }
    for seed, run in enumerate(runs):
        Trainer(
            load_config("cartpole_ppo", seed=seed, **small), run, quiet=True, pictures=False
        ).train()
    main(["report", *runs, "--episodes", "4", "--players", "2"])
    file = tmp_path / "run0" / "report.html"
    assert file.stat().st_size < 2 * 2**20
    for dark, width in ((False, 1200), (True, 400)):
        with browser(tmp_path / f"profile{width}", dark=dark, size=(width, 800)) as page:
            page.show(file)
            inside = "document.querySelector('iframe').contentWindow.eval"
            page.wait_for(f"return {inside}('state.ready')")
            theme = "dark" if dark else "light"
            assert page.run(f"return {inside}('document.documentElement.dataset.theme')") == theme
            color = page.run("return getComputedStyle(document.querySelector('svg text')).fill")
            assert color == ("rgb(232, 235, 239)" if dark else "rgb(31, 41, 51)")
            assert page.run("return document.documentElement.scrollWidth") <= width
            cut = (
                "return [...document.querySelectorAll('section > div')]"
                ".filter(own => own.scrollWidth > own.clientWidth).length"
            )
            assert page.run(cut) == 0  # no table is wider than the page
            assert page.run("return document.querySelectorAll('.panels svg').length") >= 4
            left = (
                "return [...document.querySelectorAll('iframe')].map(own => "
                "own.getBoundingClientRect().left)"
            )
            assert len(set(page.run(left))) == (
                1 if width == 400 else 2
            )  # one below the other, or side by side
            page.run(
                f"{inside}(\"by('scrub').value = 1; by('scrub').dispatchEvent(new "
                f"Event('input'))\")"
            )
            assert page.run(f"return {inside}('state.frame')") == 1
            page.run(f"{inside}('page.fps = 1000; play(true)')")
            page.wait_for(f"return {inside}('!state.playing && state.frame == page.frames - 1')")
            assert page.errors() == []
