"""Parts of a sweep without training: values, combinations, programs, rungs, tables."""

import csv
import dataclasses
import math
import warnings

import numpy as np
import pytest
from refusals import refusal

from wdjax.drawing.figures import colors_of
from wdjax.experiments.sweep import Halving, Selection, evolve, read_table, sweep
from wdjax.experiments.sweep.members import (
    Range,
    make_members,
    make_points,
    make_seeds,
    parse_settings,
    parse_values,
    read_settings,
)
from wdjax.experiments.sweep.pbt import bounds_of, draw_members
from wdjax.experiments.sweep.searching import rung_spans, survivors, trained_share, trial_scores
from wdjax.experiments.sweep.table import (
    best_member,
    draw_curves,
    final_table,
    last_known,
    point_table,
    point_words,
    trial_table,
    varied_fields,
    write_table,
)
from wdjax.train import Population, load_config

RATE = "policies.agent.learning_rate"


@pytest.fixture(scope="module")
def config():
    return load_config("cartpole_ppo")


# --- values ---


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3,3e-3", [1e-3, 3e-3]),
        ("8", [8]),
        ("relu,tanh", ["relu", "tanh"]),
        ("[64,64],[128]", [[64, 64], [128]]),
        ("[[0,1e-3],[1e5,0]],1e-3", [[[0, 1e-3], [1e5, 0]], 1e-3]),
        ("true,false", [True, False]),
        ("log:1e-4:1e-2", Range("log", 1e-4, 1e-2)),
        ("uniform:-1:2.5", Range("uniform", -1.0, 2.5)),
        ("int:1:8", Range("int", 1, 8)),
    ],
)
def test_text_is_parsed_as_values(text, values):
    assert parse_settings([f"a.b={text}"]) == {"a.b": values}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["a"], "--set = 'a': must be FIELD=VALUE,VALUE"),
        (["=1"], "--set = '=1': must be FIELD=VALUE"),
        (["a="], "--set = 'a=': must be FIELD=VALUE"),
        (["a=1", "a=2"], "--set = 'a=2': must be given once for a"),
        (["a=1,1"], "a = [1, 1]: must be different values"),
        (["a=[1"], "a = '[1': must be YAML values separated by commas"),
        (["a=log:1e-2:1e-4"], "a = 'log:1e-2:1e-4': must be finite, with LOW below HIGH"),
        (["a=log:0:1"], "a = 'log:0:1': must be above 0 for log"),
        (["a=uniform:x:1"], "a = 'uniform:x:1': must be uniform:LOW:HIGH with two numbers"),
        (["a=int:1.5:3"], "a = 'int:1.5:3': must be int:LOW:HIGH with two numbers"),
        (["a=uniform:nan:1"], "must be finite, with LOW below HIGH"),
    ],
)
def test_invalid_text_is_refused(settings, words):
    assert words in refusal(parse_settings, settings)


def test_python_values_are_parsed():
    assert parse_values("a", 3) == [3]
    assert parse_values("a", (1, 2)) == [1, 2]
    assert parse_values("a", np.array([1.0, 2.0])) == [1.0, 2.0]
    assert parse_values("a", "tanh") == ["tanh"]
    assert parse_values("a", "log:1:2") == Range("log", 1.0, 2.0)


def test_a_file_contains_a_grid_or_points(tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text(
        f"{RATE}: [1e-3, 3e-3]\nenv_params.length: 0.5\npolicies.agent.gamma: log:0.9:1"
    )
    grid = {
        RATE: [1e-3, 3e-3],
        "env_params.length": [0.5],
        "policies.agent.gamma": Range("log", 0.9, 1.0),
    }
    assert read_settings(file) == (grid, [])
    file.write_text(
        "- {env_params.length: 0.5, num_envs: 4}\n- {env_params.length: 0.7, num_envs: 8}"
    )
    assert read_settings(file) == (
        {},
        [{"env_params.length": m, "num_envs": n} for m, n in ((0.5, 4), (0.7, 8))],
    )
    file.write_text("three")
    assert "values.yaml: must contain FIELD: [VALUE, VALUE], or a list of points" in refusal(
        read_settings, file
    )


def test_points_are_all_combinations():
    assert make_points({"a": [1, 2], "b": [3, 4]}) == [
        {"a": a, "b": b} for a in (1, 2) for b in (3, 4)
    ]
    assert make_points({}) == [{}]
    assert make_points({"a": [1, 2]}, [{"b": 5}, {"b": 6}]) == [
        {"b": b, "a": a} for b in (5, 6) for a in (1, 2)
    ]
    assert "a = 'log:1.0:2.0': must be a list of values" in refusal(
        make_points, {"a": Range("log", 1.0, 2.0)}
    )
    assert "in the points or in the values" in refusal(make_points, {"a": [1]}, [{"a": 2}])
    assert "must be ['a'], as others" in refusal(make_points, {}, [{"a": 1}, {"b": 1}])
    assert "must be different from each other" in refusal(make_points, {}, [{"a": 1}, {"a": 1}])


def test_seeds_are_a_number_or_a_list():
    assert make_seeds(3, 5) == [5, 6, 7]
    assert make_seeds([9, 2], 5) == [9, 2]
    assert "seeds = 0: must be at least 1" in refusal(make_seeds, 0, 0)
    assert "seeds = 1000000000: must be at least 1 and at most 100000" in refusal(
        make_seeds, 10**9, 0
    )
    assert "seeds = [1, 1]: must be at least one seed, without duplicates" in refusal(
        make_seeds, [1, 1], 0
    )
    assert "must be a whole number" in refusal(make_seeds, 1.5, 0)


# --- members and their programs ---


def groups_of(members):
    """Return the numbers of the members of each program."""
    places = [{"member": own.number} for own in members]
    populations = Population.group([own.config for own in members], members=places)
    return [[own["member"] for own in population.members] for population in populations]


@pytest.mark.parametrize(
    ("name", "values", "programs"),
    [
        (RATE, [1e-3, 3e-3], 1),
        (RATE, [1e-3, [[0, 1e-3], [1e5, 0]]], 2),  # schedules of other lengths have other shapes
        ("policies.agent.clip", [0.1, math.inf], 1),
        ("policies.agent.network.hidden_sizes", [[64, 64], [32]], 2),
        ("policies.agent.epochs", [2, 4], 2),
        ("policies.agent.optimizer_epsilon", [1e-5, 1e-8], 2),
        ("num_envs", [4, 8], 2),
        ("total_env_steps", [1000, 2000], 2),
        ("env_params.length", [0.5, 0.7], 1),
        ("env_params.episode_length", [100, 200], 1),
    ],
)
def test_members_with_traced_differences_share_a_program(config, name, values, programs):
    members = make_members(config, make_points({name: values}), [0, 1])
    groups = groups_of(members)
    assert len(groups) == programs
    assert [number for group in groups for number in group] == [0, 1, 2, 3]
    assert [member.point for member in members] == [0, 0, 1, 1]
    assert [member.config.seed for member in members] == [0, 1, 0, 1]


def test_bounds_of_actions_need_separate_programs():
    """The action space is static. It contains the largest torque of the pendulum."""
    base = load_config("pendulum_ddpg")
    for name, programs in (("max_torque", 2), ("length", 1)):
        field = "env_params." + {"max_torque": "max_torque", "length": "l"}[name]
        assert len(groups_of(make_members(base, make_points({field: [1.0, 2.0]}), [0]))) == programs


def test_members_of_ddpg_share_a_program():
    base = load_config("pendulum_ddpg")
    values = {"policies.agent.ddpg.tau": [0.01, 0.1], "policies.agent.ddpg.noise_scale": [0.5, 1.0]}
    assert len(groups_of(make_members(base, make_points(values), [0]))) == 1
    assert (
        len(groups_of(make_members(base, make_points({"policies.agent.ddpg.n_step": [1, 2]}), [0])))
        == 2
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"policies.agent.learning_rat": [1.0]},
            "unknown field policies.agent.learning_rat: did you mean 'learning_rate'",
        ),
        (
            {RATE: [1e-3, -1.0]},
            "policies.agent.learning_rate = -1.0: must be finite and at least 0",
        ),
        ({RATE: ["fast"]}, "policies.agent.learning_rate = 'fast': must be a number"),
        (
            {"env_params.lenght": [1.0]},
            "unknown parameter of CartPole 'lenght': did you mean 'length'?",
        ),
        ({"env_params.length": [0.5, 0.0]}, "length = 0.0: must be above 0"),
        ({"seed": [1, 2]}, "swept field = 'seed': must be an option of the sweep, --seeds"),
        ({"devices": [1]}, "swept field = 'devices': must be an option of the sweep, --devices"),
        ({RATE: "log:1e-4:1e-2"}, "must be a list of values. Ranges need --search or --pbt"),
        ({"policies.agent": [3]}, "policies.agent = 3: must be a mapping of fields"),
    ],
)
def test_bad_names_and_values_are_refused_before_anything_is_written(
    config, tmp_path, values, words
):
    assert words in refusal(sweep, config, values, workdir=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"metric": "agent/episode_retrun"}, "did you mean 'agent/episode_return'"),
        ({"members_at_once": -1}, "members_at_once = -1: must be at least 0"),
        ({"devices": 9}, "devices = 9: must be at most 8"),
        ({"seeds": 0}, "seeds = 0: must be at least 1"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_written(config, tmp_path, arguments, words):
    assert words in refusal(sweep, config, workdir=tmp_path / "sweep", **arguments)
    assert not (tmp_path / "sweep").exists()


# --- rungs and populations ---


def test_rungs_of_successive_halving_by_hand():
    assert rung_spans(100, None) == [(0, 100)]
    assert rung_spans(100, Halving(4, 2)) == [(0, 6), (6, 25), (25, 100)]
    assert rung_spans(3, Halving(4, 2)) == [(0, 1), (1, 1), (1, 3)]
    scores = {0: 1.0, 1: 5.0, 2: None, 3: 5.0, 4: 3.0}
    assert survivors([0, 1, 2, 3, 4], scores, 2) == [1, 3, 4]
    assert survivors([0, 1, 3], scores, 4) == [1]  # the earlier of equals
    assert survivors([2, 0], scores, 2) == [0]
    assert "halving = 1: must be at least 2" in refusal(Halving, 1)


def test_a_trial_scores_the_mean_of_its_seeds(config):
    members = make_members(config, make_points({RATE: [1e-3, 3e-3]}), [0, 1])
    rows = [{"member": i, "x": float(10 * i)} for i in range(4)] + [
        {"member": 0, "x": None},
        {"member": 1, "x": 4.0},
    ]
    assert trial_scores(members, rows, "x") == {0: 2.0, 1: 25.0}
    assert trial_scores(members, rows[:3], "x")[1] is None  # a seed without an episode


def test_first_values_of_a_population_are_within_bounds(config):
    settings = parse_settings(
        [f"{RATE}=log:1e-4:1e-2", "policies.agent.clip=0.1,0.2,0.3", "num_envs=8"]
    )
    bounds = bounds_of(settings)
    assert bounds == {RATE: (1e-4, 1e-2), "policies.agent.clip": (0.1, 0.3)}
    members = draw_members(config, settings, 64)
    assert members == draw_members(config, settings, 64)
    rates, clips = (np.array([member.values[name] for member in members]) for name in bounds)
    assert 1e-4 <= rates.min() < 2e-4
    assert 5e-3 < rates.max() <= 1e-2
    assert 20 < (rates < 1e-3).sum() < 44  # uniform in the logarithm
    assert set(clips) == {0.1, 0.2, 0.3}
    assert [member.config.seed for member in members] == list(range(64))
    assert {member.config.num_envs for member in members} == {8}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({RATE: [1e-3]}, "must be several values or a range of at least one field"),
        (
            {"env_params.length": [0.5, 0.7]},
            "unknown hyperparameter that a run can change 'env_params.length'",
        ),
        ({"num_envs": [4, 8]}, "unknown hyperparameter that a run can change 'num_envs'"),
        ({"policies.agent.epochs": "int:1:4"}, "must be numbers, or log:LOW:HIGH, with --pbt"),
        (
            {"policies.agent.optimizer": ["adam", "sgd"]},
            "must be numbers, or log:LOW:HIGH, with --pbt",
        ),
        (
            {RATE: "log:1e-4:1e-2", "num_env": [8]},
            "unknown field num_env: did you mean 'num_envs'?",
        ),
    ],
)
def test_fields_that_are_not_traced_are_refused(config, tmp_path, values, words):
    assert words in refusal(evolve, config, values, 4, workdir=tmp_path / "pbt")
    assert not (tmp_path / "pbt").exists()


def test_bad_selections_are_refused(config):
    assert "fraction = 0.6: must be above 0 and at most 0.5" in refusal(Selection, 1, 0.6)
    assert "factors = (1.0, 0.0): must be two numbers above 0" in refusal(
        Selection, 1, 0.25, (1.0, 0.0)
    )
    assert "every = 0: must be at least 1" in refusal(Selection, 0)
    assert "every_updates = -1: must be at least 0" in refusal(Selection, every_updates=-1)
    assert "members = 1: must be at least 2" in refusal(evolve, config, {RATE: [1e-3, 1e-2]}, 1)


def test_selections_are_counted_in_updates(config):
    chunks_of_5 = dataclasses.replace(config, updates_per_chunk=5)
    assert Selection(every_updates=7).in_updates(chunks_of_5) == 7
    assert Selection(3).in_updates(chunks_of_5) == 15
    steps = 100 * config.env_steps_per_update
    no_size = dataclasses.replace(config, updates_per_chunk=0, total_env_steps=steps)
    assert Selection(3).in_updates(no_size) == 15  # twentieths of the run


# --- tables ---


def test_the_table_holds_the_last_chunk_and_the_last_known_score(config, tmp_path):
    members = make_members(
        config, make_points({RATE: [1e-3, 3e-3], "policies.agent.network.hidden_sizes": [[8]]}), [4]
    )
    rows = [
        {"member": 0, "env_steps": 10, "x": 1.0}, {"member": 1, "env_steps": 10, "x": 5.0},
        {"member": 0, "env_steps": 20, "x": 3.0}, {"member": 1, "env_steps": 20, "x": None},
    ]  # fmt: skip
    sizes = "policies.agent.network.hidden_sizes"
    table = final_table(members, rows, "x")
    assert table == [
        {"member": 0, RATE: 1e-3, sizes: [8], "seed": 4, "score": 3.0, "env_steps": 20, "x": 3.0},
        {"member": 1, RATE: 3e-3, sizes: [8], "seed": 4, "score": 5.0, "env_steps": 20, "x": None},
    ]
    assert best_member(table)["member"] == 1
    assert best_member([{"score": None}]) is None
    assert last_known(rows[:1], "y") == {0: None}
    write_table(tmp_path, table)
    assert read_table(tmp_path) == table
    with open(tmp_path / "table.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["x"] for line in lines] == ["3.0", ""]
    assert [line[sizes] for line in lines] == ["[8]", "[8]"]
    assert varied_fields(members) == [RATE]
    assert point_words(members[1].values, varied_fields(members)) == "learning_rate 0.003"


def test_the_curves_with_the_highest_ends_are_drawn(config, tmp_path, monkeypatch):
    """One seed of each point has a number; the other has none."""
    drawn = []
    monkeypatch.setattr(
        "wdjax.experiments.sweep.table.write_curves",
        lambda path, title, panels: drawn.append((title, panels["x"])),
    )
    rates = [round(1e-3 * (i + 1), 3) for i in range(12)]
    members = make_members(config, make_points({RATE: rates}), [0, 1])
    rows = [
        {"member": own.number, "env_steps": 8, "x": None if own.config.seed else 1.0 * own.point}
        for own in members
    ]
    assert draw_curves(tmp_path / "c.png", members, rows, ["x"], "many") is not None
    [(title, curves)] = drawn
    assert title == "many (best 6 of 12)"
    assert [(words, curve.middle.tolist()) for words, curve in curves] == [
        (f"learning_rate {rates[i]:.4g}", [float(i)]) for i in range(6, 12)
    ]
    assert draw_curves(tmp_path / "d.png", members, rows, ["y"], "none") is None


def test_scores_have_a_sample_deviation(config):
    """138.7 and 196.2 are the deviations of two scores over 2 and over 1, as in pandas."""
    members = make_members(config, [{RATE: 1e-3}], [0, 1])
    table = [{"member": i, "score": score} for i, score in enumerate([100.0, 377.4])]
    printed = point_table(members, table)
    assert [column.header for column in printed.columns] == [
        "score ± SD",
        "IQM",
        "P(best > this)",
        "seeds",
    ]
    assert list(printed.columns[0].cells) == ["238.70 ± 196.15"]
    assert list(point_table(members, table[:1]).columns[0].cells) == ["100.00"]
    assert "sample standard deviation" in printed.caption


def test_equal_last_parts_of_fields_have_longer_names():
    rates = {"policies.a.learning_rate": 1e-3, "policies.b.learning_rate": 1e-2, "num_envs": 2}
    words = "a.learning_rate 0.001, b.learning_rate 0.01, num_envs 2"
    assert point_words(rates, list(rates)) == words


def test_a_search_prints_its_best_trials():
    rows = [("pruned", 9.0, 20), ("complete", 4.0, 40), ("fail", None, None), ("complete", 6.5, 40)]
    table = [
        {"trial": i, RATE: 1e-3 * i, "score": score, "state": state, "env_steps": steps}
        for i, (state, score, steps) in enumerate(rows)
    ]
    printed = trial_table(table, [RATE])
    assert list(zip(*(column.cells for column in printed.columns), strict=True)) == [
        ("3", "0.003", "6.50", "40", "complete"),
        ("1", "0.001", "4.00", "40", "complete"),
        ("0", "0", "9.00", "20", "pruned"),
        ("2", "0.002", "-", "-", "fail"),
    ]
    many = trial_table([row | {"trial": i} for row in table for i in range(6)], [RATE])
    assert len(many.rows) == 20
    assert "best 20 of 24 trials" in many.caption


def test_the_bar_of_a_search_counts_what_halving_trains(config):
    members = make_members(config, [{RATE: 1e-3 * (i + 1)} for i in range(5)], [0, 1])
    updates = config.num_updates
    assert trained_share(members, None) == 1.0
    half = updates // 2  # three of five trials continue
    share = (5 * half + 3 * (updates - half)) / (5 * updates)
    assert trained_share(members, Halving(2, 1)) == pytest.approx(share)


@pytest.mark.slow  # matplotlib
def test_one_seed_has_no_interval(config, tmp_path):
    members = make_members(config, [{RATE: 1e-3}], [0, 1])
    rows = [
        {"member": i, "score": score, "env_steps": 8, "x": score}
        for i, score in enumerate([3.0, 5.0])
    ]
    cells = lambda seeds: list(point_table(members, rows[:seeds]).columns[-3].cells)  # noqa: E731
    assert (cells(1), cells(2)) == (["3 [-]"], ["4 [3, 5]"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw_curves(tmp_path / "c.png", members[:1], rows[:1], ["x"], "one") is not None


def test_curves_have_the_colors_and_the_unit_of_a_report(config, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(
        "wdjax.experiments.report.curves.write_figure",
        lambda figure, file, **options: figures.append(figure),
    )
    members = make_members(config, make_points({RATE: [1e-3, 3e-3]}), [0])
    metric = "agent/episode_return"
    rows = [{"member": i, "env_steps": 8, metric: 1.0} for i in range(2)]
    draw_curves(tmp_path / "c.png", members, rows, [metric], "two")
    [axes] = figures[0].axes
    assert axes.get_ylabel() == f"{metric}\n[reward, sum over its agents]"
    labels = [line.get_label() for line in axes.lines]
    assert [line.get_color() for line in axes.lines] == list(colors_of(labels).values())
