"""Schedules in fractions of a run, converted to env steps."""

import dataclasses

import jax
import numpy as np
import pytest
import yaml
from refusals import refusal
from tiny_runs import small_config

from wdjax.experiments.commands.diff import fields_of
from wdjax.experiments.commands.train import of_preset, with_flags
from wdjax.experiments.sweep.members import make_members
from wdjax.train import (
    Fraction,
    Population,
    Trainer,
    change_config,
    load_config,
    make_learner,
    plain_config,
    read_config,
)
from wdjax.train.config.facts import in_env_steps, is_scheduled, leaves
from wdjax.train.host.progress import schedule_warnings
from wdjax.train.load import PRESETS
from wdjax.train.storage.folder import load_run_config
from wdjax.train.storage.sweep_folder import require_same

pytestmark = pytest.mark.usefixtures("quick_compile")

RATE = "policies.agent.learning_rate"
HALF = {"fraction": [[0, 1e-3], [0.5, 2e-4], [1, 0]]}


def rate(config):
    return config.policies["agent"].learning_rate


def test_yaml_python_and_command_line_agree(tmp_path):
    (tmp_path / "own.yaml").write_text((PRESETS / "cartpole_ppo.yaml").read_text())
    own = load_config(tmp_path / "own.yaml", **{RATE: HALF})
    words = ["--policies.agent.learning-rate", "fraction", "0", "1e-3", "0.5", "2e-4", "1", "0"]
    for total in (150_000, 99_999):
        flags = [*words, "--total-env-steps", str(total)]
        raw, default = of_preset("cartpole_ppo", flags)
        flagged = with_flags("cartpole_ppo", raw, default, flags).config
        given = dataclasses.replace(own, total_env_steps=total)
        assert rate(flagged) == rate(given) == Fraction(((0.0, 1e-3), (0.5, 2e-4), (1.0, 0.0)))
        expected = ((0.0, 1e-3), (float(round(total / 2)), 2e-4), (float(total), 0.0))
        assert rate(make_learner(given).config) == expected
    policy = dataclasses.replace(own.policies["agent"], learning_rate=HALF)
    assert rate(make_learner(dataclasses.replace(own, policies={"agent": policy})).config)[-1] == (
        150_000.0,
        0.0,
    )


@pytest.mark.slow
def test_every_field_that_takes_a_schedule_takes_fractions():
    config = load_config(
        "pendulum_ddpg",
        **{
            RATE: HALF,
            "policies.agent.critic_learning_rate": HALF,
            "policies.agent.noise_scale": HALF,
        },
    )
    learner = make_learner(config)
    # a program without the rest of the state compiles faster
    hypers = jax.jit(lambda key: learner.init(key).hypers["agent"])(jax.random.key(0))
    for name in ("learning_rate", "critic_learning_rate", "noise_scale"):
        np.testing.assert_array_equal(hypers[name].env_steps, [0, 30_000, 60_000])
    tag = load_config(
        "tag_small",
        num_blocks=4,
        **{
            "policies.runner.opponents": {"random": {"fraction": [[0, 0.5], [1, 0]]}},
            "policies.runner.past_selves": 2,
            "policies.runner.past_selves_fraction": {"fraction": [[0, 0], [1, 0.5]]},
        },
    )
    runner = make_learner(tag).config.policies["runner"]
    assert runner.opponents["random"] == ((0.0, 0.5), (1_280_000.0, 0.0))
    assert runner.past_selves_fraction == ((0.0, 0.0), (1_280_000.0, 0.5))
    too_much = {"random": {"fraction": [[0, 0], [1, 1]]}}
    assert "shares at env step 1.28e+06" in refusal(
        change_config, tag, **{"policies.runner.opponents": too_much}
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"fractions": [[0, 1]]}, f"unknown field {RATE}.fractions: did you mean 'fraction'?"),
        ({"fraction": [[0, 1]], "x": 1}, f"unknown field {RATE}.x: did you mean 'fraction'?"),
        ({}, f"{RATE} = {{}}: must be {{fraction: [[0, value], [1, value]]}}"),
        ({"fraction": 1.0}, "must be {fraction: [[0, value], [1, value]]}"),
        ({"fraction": [[0, "x"]]}, "must be {fraction: [[0, value], [1, value]]}"),
        ({"fraction": [0, 1]}, "must be {fraction: [[0, value], [1, value]]}"),
        ({"fraction": []}, "at least one"),
        ({"fraction": [[1, 0], [0, 1]]}, "sorted"),
        ({"fraction": [[-1, 0], [0, 1]]}, "finite and at least 0"),
        ({"fraction": [[0, -1]]}, "finite and at least 0"),
    ],
)
def test_invalid_schedules_are_refused(value, words):
    assert words in refusal(small_config, **{RATE: value})


def test_config_yaml_round_trip():
    config = small_config(**{RATE: HALF})
    assert plain_config(config)["policies"]["agent"]["learning_rate"] == HALF
    assert read_config(yaml.safe_load(yaml.safe_dump(plain_config(config)))) == config
    assert rate(change_config(config, seed=3)) == rate(config)
    assert hash(rate(config)) != hash(None)
    assert rate(config) != tuple(rate(config))


@pytest.mark.slow
def test_a_resumed_run_keeps_its_schedule(tmp_path, monkeypatch):
    """Also with another length, and runs of wdjax 0.2.0 with the same schedule in env steps."""
    monkeypatch.setattr(Trainer, "draw", lambda self: None)
    same = {"best_metric": "none"}  # evaluations compile another program
    steps = ((0.0, 1e-3), (384.0, 2e-4), (768.0, 0.0))
    config = small_config(**{RATE: HALF}, **same)
    state = Trainer(config, tmp_path / "a", quiet=True).train()
    in_steps = Trainer(small_config(**{RATE: steps}, **same), tmp_path / "b", quiet=True).train()
    for a, b in zip(
        jax.tree.leaves(state.policies), jax.tree.leaves(in_steps.policies), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert rate(load_run_config(folder)) == steps
        for updates in (7, 9, 8):
            longer = dataclasses.replace(config, total_env_steps=updates * 128)
            longer = Trainer(longer, folder, resume=True, quiet=True)
            assert rate(longer.config) == steps
        assert int(longer.train().num_updates) == 8
        other = {"fraction": [[0, 1e-3], [0.4, 2e-4], [1, 0]]}
        other = small_config(**{RATE: other}, **same)
        assert f"{RATE} = [[0.0, 0.001], " in refusal(
            Trainer, other, folder, resume=True, quiet=True
        )


def test_schedule_that_ends_at_another_step_than_the_run_is_reported():
    def warnings(value, total):
        given = small_config(**{RATE: value, "total_env_steps": total})
        return list(schedule_warnings(given, in_env_steps(given, total, kept)))

    kept = None
    steps = [[0, 1e-3], [1_000, 0]]
    [words] = warnings(steps, 500)
    assert words.startswith(f"Warning: {RATE} ends at env step 1,000, but the run ends at 500, ")
    assert "where its value is 0.0005." in words
    assert len(warnings(steps, 2_000)) == 1
    for value in (steps, 1e-3, [[0, 1e-3]], HALF, {"fraction": [[0, 1e-3], [0.2, 0]]}):
        assert warnings(value, 1_000) == []
    kept = in_env_steps(small_config(**{RATE: HALF}), 1_000)
    assert len(warnings(HALF, 2_000)) == 1  # a run that is resumed with another length


def test_sweeps_over_schedules_and_lengths():
    points = [{RATE: HALF}, {RATE: 1e-3}]
    members = make_members(small_config(), points, [0])
    rates = [rate(own.configs[0]) for own in Population.group([own.config for own in members])]
    assert rates[0] == ((0.0, 1e-3), (384.0, 2e-4), (768.0, 0.0))
    lengths = make_members(
        small_config(**{RATE: HALF}), [{"total_env_steps": 128 * i} for i in (1, 2)], [0]
    )
    groups = Population.group([own.config for own in lengths])
    assert [rate(own.configs[0])[-1][0] for own in groups] == [128.0, 256.0]
    forms = (HALF, [[0, 1e-3], [384, 2e-4], [768, 0]])
    asked = [{"config": plain_config(small_config(**{RATE: value}))} for value in forms]
    require_same("a sweep of wdjax 0.2.0", asked[1], asked[0])
    require_same("a sweep", asked[0], asked[0])


def test_presets_fit_their_length():
    for file in PRESETS.glob("*.yaml"):
        given = load_config(file)
        ends = list(schedule_warnings(given, in_env_steps(given, given.total_env_steps)))
        assert ends == []
        for policy in given.policies.values():
            for _, fields, own in leaves(policy):
                assert not is_scheduled(fields[-1]) or isinstance(own, float | Fraction), file.stem
    assert fields_of("acrobot_ppo")[RATE] == [[0.0, 1e-3], [500_000.0, 0.0]]
    assert (
        fields_of("tag_continuous_ppo")["policies.runner.past_selves_fraction"][1][0] == 6_500_000.0
    )


def test_rice_follows_the_schedule_of_its_reference():
    """RICE-N's own schedule is for 5,000,000 env steps; `rice` ends after 20,000."""
    reference = ((0.0, 0.5), (1e6, 0.1), (5e6, 0.05))
    config = load_config("rice")
    points = fields_of("rice")["policies.region.entropy_coefficient"]
    for step in range(0, config.total_env_steps + 1, config.env_steps_per_update):
        values = [np.interp(step, *zip(*own, strict=True)) for own in (points, reference)]
        assert values[0] == pytest.approx(values[1], rel=1e-7)


def test_of_points_at_one_env_step_the_last_counts():
    assert Fraction(((0.0, 0.1), (0.3, 0.2), (1.0, 0.5))).in_env_steps(1) == (
        (0.0, 0.2),
        (1.0, 0.5),
    )
    assert load_config("tag_continuous_ppo", total_env_steps=1).total_env_steps == 1
