"""Names that users choose are never patterns, markup, URLs or code: all commands, in one process."""

import json
import os
from pathlib import Path

import jax.numpy as jnp
import pytest
import yaml

from wdjax import envs
from wdjax.envs.classic_control import CartPole
from wdjax.experiments.cli import main
from wdjax.train import read_metrics

NAMES = (
    "a[0]b", "[red]x[-red]", "[", "]", "*", "?", "z*?", "**", "$x$", "$", "$x^{$", "$(id)",
    "%20", "%s%d", "100%", "'", '"', "q'x\"y", "sp ace", " lead", "trail ", "tab\tin", "ü日本", "\U0001f600", "e\u0301",
    "-dash", "--resume", "{0}", "{", "}", "~t", "c~", "#a", "a|b", ";ls", "`id`", "file:", "http:", "<b>&amp;",
    "u" * 200,
)  # fmt: skip
POLICIES = ("[red]x[-red]", "$x^{$")


def noted(names):
    """Return cartpole with statistics of these names."""

    class Noted(CartPole):
        def step(self, key, state, action, params):
            *rest, info = super().step(key, state, action, params)
            return *rest, {**info, **{name: jnp.float32(1) for name in names}}

    return Noted


def preset(policy):
    return {
        "env": "noted", "num_envs": 2, "rollout_length": 4, "total_env_steps": 16, "updates_per_chunk": 1,
        "eval_episodes": 2, "policies": {policy: {"agents": ["agent"], "network": {"hidden_sizes": [4]}}},
    }  # fmt: skip


@pytest.mark.slow
def test_commands_take_hostile_names_as_they_are(tmp_path, monkeypatch, quick_compile, capsys):
    assert len(set(NAMES)) == 40
    monkeypatch.chdir(tmp_path)
    for i, policy in enumerate(POLICIES):
        names = NAMES[i::2]  # twenty in each path, and as many statistics
        monkeypatch.setitem(envs._REGISTRY, "noted", noted(names))
        run = os.path.join(".", *names)
        file = f"./{NAMES[(7 * i + 3) % 40]}.yaml"
        with open(file, "w", encoding="utf8") as stream:
            yaml.safe_dump(preset(policy), stream, allow_unicode=True)
        main(["train", file, f"--workdir={run}", "--callbacks", "csv"])
        main(["train", file, f"--workdir={run}", "--callbacks", "csv", "--resume", "--total-env-steps=24"])
        rows = read_metrics(run)
        assert [row["updates"] for row in rows] == [1, 2, 3]
        assert all(f"{policy}/episode_return" in row for row in rows)
        assert {"config.yaml", "metrics.csv", "curves.png", "checkpoints"} <= set(os.listdir(run))
        main(["eval", run, "--episodes", "2", "--output", f"{run}/eval.json"])
        assert json.loads(Path(run, "eval.json").read_text(encoding="utf8"))
        if i == 0:
            main(["report", run, "--output", f"{run}/report.html"])
            main(["render", run, "--output", f"{run}/episode.svg"])
            main(["export", run])
            main(["diff", run, run])
    assert "Warning: no" not in capsys.readouterr().out
