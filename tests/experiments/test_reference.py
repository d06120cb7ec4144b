"""Reference rows: stored results meet their targets and match the current presets."""

import copy
import dataclasses
import math
import types

import chex
import jax
import numpy as np
import pytest
import yaml

from wdjax.experiments.reference import rerun
from wdjax.experiments.reference.rerun import (
    FOLDER,
    curve,
    leaves_band,
    main,
    mean_return,
    measure,
    misses,
    read_result,
    readme,
    summarize,
)
from wdjax.experiments.reference.rows import (
    ROWS,
    Row,
    Target,
    against_others,
    first_reached,
    greedy_return,
)
from wdjax.train import change_config, evaluate, load_config, load_run, make_learner, read_config
from wdjax.train.learner import setup as setups
from wdjax.yaml_reader import read_yaml

# The learning table: targets of the numbers of a row, and the maximum of env steps.
TABLE = {
    "cartpole": ({"env steps until 475": ("at most", 150_000, "every seed")}, None, 8),
    "acrobot": ({"greedy return": ("at least", -85, "every seed")}, 500_000, 5),
    "mountain_car": ({"greedy return": ("at least", -115, "mean")}, 5_000_000, 5),
    "continuous_mountain_car_ddpg": ({"greedy return": ("at least", 92, "mean")}, 1_000_000, 5),
    "cartpole_dqn": ({"greedy return": ("at least", 475, "every seed")}, 300_000, 5),
    "pendulum_ddpg": ({"greedy return": ("at least", -170, "mean")}, 1_000_000, 5),
    "pendulum_sac": ({"greedy return": ("at least", -150, "every seed")}, 60_000, 5),
    "pendulum_ppo": ({"greedy return": ("at least", -170, "mean")}, 1_000_000, 5),
    "tag_gridworld": (
        {
            "last step of trained taggers": ("at most", 40, "mean"),
            "trained runners left": ("at least", 0.95, "mean"),
        },
        None, 5,
    ),
    "tag_continuous": (
        {
            "runners left by trained taggers": ("at most", 0, "mean"),
            "last step of trained taggers": ("at most", 180, "mean"),
            "trained runners left": ("at least", 93, "mean"),
            "trained runners left by chase_nearest": ("at least", 88, "mean"),
            "flee_nearest left by trained taggers": ("at most", 0, "mean"),
            "last step against flee_nearest": ("at most", 150, "mean"),
        },
        None, 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_rows_have_the_targets_of_the_table(name):
    targets, within, seeds = TABLE[name]
    row = ROWS[name]
    asked = {number: target for number, target in row.targets.items() if target is not None}
    for number, (side, limit, whose) in targets.items():
        target = asked.pop(number)
        assert (target.limit, target.at_least, target.every_seed) == (
            limit,
            side == "at least",
            whose == "every seed",
        )
    assert not asked
    assert row.within == within
    assert row.seeds >= seeds


@pytest.mark.parametrize("name", ROWS)
def test_stored_numbers_meet_their_targets(name):
    result, row = read_result(name), ROWS[name]
    assert misses(name, row, result) == []
    assert leaves_band(name, result, result) == []
    assert result["preset"] == row.preset
    stored, config = (
        dataclasses.replace(make_learner(config).config, checkpoint_every=1)
        for config in (read_config(result["config"]), load_config(row.preset))
    )
    assert stored == config  # else the numbers are another run's
    assert result["env_steps_per_seed"] == config.num_updates * config.env_steps_per_update
    assert result["numbers"].keys() == row.targets.keys()
    for values in result["numbers"].values():
        assert len(values["per_seed"]) == result["seeds"] == row.seeds
        again = summarize(values["per_seed"])
        np.testing.assert_allclose(
            [values["mean"], *values["band"]], [again["mean"], *again["band"]], rtol=1e-4
        )


@pytest.mark.parametrize("name", ROWS)
def test_plots_exist_and_are_small(name):
    picture = (FOLDER / "plots" / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 60_000


def test_readme_matches_the_stored_results():
    text = (FOLDER / "README.md").read_text(encoding="utf8")
    assert text == readme({name: read_result(name) for name in ROWS})


def test_only_rows_are_stored():
    assert {path.stem for path in (FOLDER / "results").iterdir()} == set(ROWS)


def test_summary_by_hand():
    values = summarize([1.0, 2.0, 3.0])  # deviation 1
    assert values["mean"] == 2.0
    np.testing.assert_allclose(
        values["band"], [2 - 4 * math.sqrt(2 / 3), 2 + 4 * math.sqrt(2 / 3)], rtol=1e-5
    )
    np.testing.assert_allclose(summarize([-50.0, -50.0])["band"], [-51.0, -49.0])  # 2 %
    assert summarize([math.inf, 3.0])["per_seed"] == [math.inf, 3.0]


def test_first_reached_by_hand():
    returns, episodes = np.array([9.0, 1.0, np.nan, 9.0, 9.0, 9.0]), np.array([0, 1, 0, 1, 2, 3])
    # windows of 2 updates: 1, 1, 9 ...: the 9 of update 0 is of no episode
    assert first_reached(returns, episodes, 5.0, window=2) == 3
    assert first_reached(returns, episodes, 9.5, window=2) == math.inf
    assert (
        first_reached(returns, episodes, 8.0, window=3) == 4
    )  # (9 + 2 * 9) / 3; at 3 still (1 + 9) / 2
    assert first_reached(returns, episodes, 0.5, window=2) == 1


LINE = {"number": Target(2.0)}


def result_of(*values, env_steps=100):
    return {"numbers": {"number": summarize(list(values))}, "env_steps_per_seed": env_steps}


@pytest.mark.parametrize(
    ("target", "values", "problems"),
    [
        (Target(2.0), (1.0, 3.0), []),
        (Target(2.0), (1.0, 2.9), ["row: number, mean, is 1.95: must be at least 2"]),
        (Target(2.0, every_seed=True), (1.0, 3.0),
            ["row: number, seed 0, is 1: must be at least 2 for every seed"]),
        (Target(2.0, at_least=False), (1.0, 3.0), []),
        (Target(2.0, at_least=False), (2.0, 3.0), ["row: number, mean, is 2.5: must be at most 2"]),
        (Target(2.0, at_least=False, every_seed=True), (2.0, math.inf),
         ["row: number, seed 1, is inf: must be at most 2 for every seed"]),
        (None, (0.0, 0.0), []),
    ],
)  # fmt: skip
def test_targets(target, values, problems):
    assert (
        misses("row", Row("preset", greedy_return, {"number": target}), result_of(*values))
        == problems
    )


def test_budget_of_env_steps():
    row = Row("preset", greedy_return, LINE, within=100)
    assert misses("row", row, result_of(2.0, env_steps=100)) == []
    [sentence] = misses("row", row, result_of(2.0, env_steps=101))
    assert sentence == "row: ran for 101 env steps: must be within 100"


def test_band():
    stored = result_of(90.0, 110.0)
    low, high = stored["numbers"]["number"]["band"]
    assert (
        leaves_band("row", result_of(low), stored)
        == leaves_band("row", result_of(high), stored)
        == []
    )
    for outside in (low - 0.1, high + 0.1, math.nan):
        [sentence] = leaves_band("row", result_of(outside), stored)
        assert (
            sentence
            == f"row: number, mean, is {outside:,.6g}: outside the stored band {low:,.6g} .. "
            f"{high:,.6g}"
        )
    assert leaves_band("row", result_of(1.0), None) == [
        "row: no stored result. Store one with --update."
    ]
    other = {"numbers": {"other": stored["numbers"]["number"]}}
    assert leaves_band("row", other, stored) == [
        "row: other: no stored result. Store one with --update."
    ]


def size_of_parameters(learner, state, metrics, key):
    numbers = greedy_return(learner, state, metrics, key, episodes=4)
    return {
        **numbers,
        "size": sum(
            float(abs(leaf).sum()) for leaf in jax.tree.leaves(state.policies["agent"].params)
        ),
    }


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a row of two seeds and three updates."""
    file = tmp_path_factory.mktemp("presets") / "tiny.yaml"
    content = {
        "env": "cartpole", "num_envs": 8, "rollout_length": 32, "total_env_steps": 600,
        "policies": {"agent": {"network": {"hidden_sizes": [4]}}},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content), encoding="utf8")
    return Row(str(file), size_of_parameters, {"greedy return": Target(1.0), "size": None}, seeds=2)


@pytest.fixture(scope="module")
def measured(tiny, quick_compile):
    """Return what `measure` returns for the tiny row, on one device of two."""
    with pytest.MonkeyPatch.context() as patch:  # by default, a run uses all GPUs
        patch.setattr(setups, "choose_devices", lambda config: config.devices or 2)
        return measure(tiny)


@pytest.mark.slow
def test_seeds_equal_solo_runs(tiny, measured):
    result, first = measured
    learner = make_learner(load_config(tiny.preset))
    for seed in range(2):
        state, _ = learner.run(learner.init(jax.random.key(seed)), num_updates=3)
        alone = sum(
            float(abs(leaf).sum()) for leaf in jax.tree.leaves(state.policies["agent"].params)
        )
        np.testing.assert_allclose(result["numbers"]["size"]["per_seed"][seed], alone, rtol=1e-4)
    size = size_of_parameters(learner, first, {}, jax.random.key(0))["size"]
    assert size == pytest.approx(result["numbers"]["size"]["per_seed"][0], rel=1e-5)
    assert result["curve"]["env_steps"] == [256, 512, 768]
    curve = result["curve"]["agent"]
    for low, middle, high in zip(curve["low"], curve["iqm"], curve["high"], strict=True):
        assert low is middle is high is None or low <= middle <= high


def test_curve_by_hand():
    learner = types.SimpleNamespace(
        config=types.SimpleNamespace(
            num_updates=2, env_steps_per_update=10, policies={"agent": None}
        )
    )
    seeds = [
        {"episodes": np.array([0, 2]), "agent/episode_return": np.array([np.nan, 4.0])},
        {"episodes": np.array([1, 1]), "agent/episode_return": np.array([2.0, 8.0])},
    ]
    agent = {
        "iqm": [None, 6.0],
        "low": [None, 4.0],
        "high": [None, 8.0],
    }  # one seed had no episode yet
    assert curve(learner, seeds) == {"env_steps": [10, 20], "agent": agent}
    one_bin = {
        name: np.array([1, 3]) if name == "episodes" else np.array([2.0, 6.0]) for name in seeds[0]
    }
    assert mean_return(one_bin, "agent", np.array([0, 1])) == 5.0  # (1 x 2 + 3 x 6) / 4


@pytest.mark.slow
def test_script_stores_checks_and_refuses(tiny, measured, monkeypatch, tmp_path, capsys):
    result, first = measured
    monkeypatch.setattr(rerun, "measure", lambda row: (copy.deepcopy(result), first))
    monkeypatch.setitem(ROWS, "tiny", tiny)
    with pytest.raises(SystemExit) as refused:
        main(["tinny"], tmp_path)
    assert refused.value.code == 2
    assert "tiny" in capsys.readouterr().err
    with pytest.raises(SystemExit) as absent:
        main(["tiny"], tmp_path)
    assert absent.value.code == 1
    main(["tiny", "--update"], tmp_path)
    assert (tmp_path / "plots" / "tiny.png").stat().st_size < 60_000
    assert "## tiny" in (tmp_path / "README.md").read_text(encoding="utf8")
    main(["tiny"], tmp_path)
    file = tmp_path / "results" / "tiny.yaml"
    stored = read_yaml(file)
    stored["numbers"]["size"]["band"] = [0.0, 1.0]
    file.write_text(yaml.safe_dump(stored), encoding="utf8")
    capsys.readouterr()
    with pytest.raises(SystemExit) as outside:
        main(["tiny"], tmp_path)
    assert outside.value.code == 1
    assert "tiny: size, mean, is" in capsys.readouterr().out
    monkeypatch.setitem(
        ROWS,
        "tiny",
        dataclasses.replace(tiny, targets={"greedy return": Target(1e6), "size": None}),
    )
    before = file.read_text(encoding="utf8")
    with pytest.raises(SystemExit) as missed:
        main(["tiny", "--update"], tmp_path)
    assert missed.value.code == 1
    assert file.read_text(encoding="utf8") == before  # what misses its target is not stored


@pytest.mark.slow
def test_cross_play_numbers(quick_compile):
    changes = {
        "num_envs": 4,
        "rollout_length": 4,
        "env_params.episode_length": 7,
        "env_params.grid_length": 2,
    }
    learner = make_learner(load_config("tag_gridworld_ppo", **changes))
    state = learner.init(jax.random.key(0))
    numbers = against_others(learner, state, {}, jax.random.key(1), episodes=64, greedy=True)
    assert 0 < numbers["last step of trained taggers"] <= 7
    for name in (
        "runners left by trained taggers",
        "trained runners left",
        "random runners left by random taggers",
    ):
        assert 0 <= numbers[name] <= 1
    assert (
        numbers["random runners left by random taggers"] < 0.5
    )  # four taggers at random on nine cells


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in (FOLDER / "policies").glob("*.npz")])
def test_bundled_runs_load(name):
    learner, state = load_run(f"reference:{name}")
    assert learner.config.policies == make_learner(load_config(ROWS[name].preset)).config.policies
    for own in state.policies.values():
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(own.params))
    assert (FOLDER / "policies" / f"{name}.npz").stat().st_size < 200_000


@pytest.mark.slow
def test_a_policy_begins_with_a_reference_and_plays_against_it():
    changes = {
        "checkpoint": "reference:tag_continuous:runner",
        "trainable": False,
        "past_selves": 0,
    }
    config = load_config(
        "tag_continuous_ppo", **{f"policies.runner.{k}": v for k, v in changes.items()}
    )
    pool = {"reference:tag_continuous": 0.5}
    config = change_config(
        config, **{"policies.runner.opponents": {}, "policies.tagger.opponents": pool}
    )
    state = make_learner(config).init(jax.random.key(1))
    _, learned = load_run("reference:tag_continuous")
    chex.assert_trees_all_equal(state.policies["runner"].params, learned.policies["runner"].params)
    last = jax.tree.map(lambda leaf: leaf[-1], state.opponents.pools["tagger"].networks.params)
    chex.assert_trees_all_equal(last, learned.policies["tagger"].params)


def test_only_rows_have_policies():
    with pytest.raises(ValueError, match=r"'tag_continuos'.*did you mean 'tag_continuous'"):
        load_run("reference:tag_continuos")
    with pytest.raises(ValueError, match="checkpoint of reference:cartpole = 120: must be omitted"):
        load_run("reference:cartpole@120")


@pytest.mark.slow
def test_a_bundled_policy_reaches_its_stored_return():
    """The mean of new episodes is within four standard errors of the first seed's number."""
    learner, state = load_run("reference:pendulum_ddpg")
    [returns] = evaluate(
        learner, state, jax.random.key(5), 1_000, greedy=True
    ).episode_return.values()
    stored = read_result("pendulum_ddpg")["numbers"]["greedy return"]["per_seed"][0]
    assert abs(returns.mean() - stored) < 4 * np.sqrt(2) * returns.std() / np.sqrt(1_000)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seeds"), [("cartpole", 4), ("pendulum_ddpg", 2)])
def test_rerun_of_a_quick_row_stays_in_its_band(name, seeds):
    """With some of the row's seeds; their mean is well within the band of all."""
    row = dataclasses.replace(ROWS[name], seeds=seeds)
    result, _ = measure(row)
    assert misses(name, row, result) == []
    assert leaves_band(name, result, read_result(name)) == []
