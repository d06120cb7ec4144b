"""Curves of run folders: columns, settings that differ, and errors for damaged folders."""

import json

import pytest
import yaml

from wdjax.train import complete_env_params, load_config, plain_config, read_curves
from wdjax.train.config.facts import in_env_steps

SIZES, RATE = "policies.agent.network.hidden_sizes", "policies.agent.learning_rate"


def write_run(folder, returns, **changes):
    """Write the configuration and metrics of a run, without training it."""
    config = load_config("cartpole_ppo", **changes)
    config = plain_config(in_env_steps(config, config.total_env_steps))
    folder.mkdir(parents=True)
    text = yaml.safe_dump({"wdjax": "0.3.0", "made_with": {"python": str(folder)}, **config})
    (folder / "config.yaml").write_text(text)
    rows = [{"updates": i + 1, "agent/episode_return": value} for i, value in enumerate(returns)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_members(folder, numbers, update=1, **values):
    """Write members.json and a row of metrics for each member."""
    folder.mkdir(parents=True)
    members = [{"member": n, "seed": 7, "values": values} for n in numbers]
    (folder / "members.json").write_text(json.dumps({"size": len(members), "members": members}))
    rows = [{"member": n, "updates": update} for n in numbers]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_sweep(folder, preset="cartpole_ppo", **changes):
    """Write the base configuration of a sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    config = plain_config(load_config(preset, **changes))
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"mode": "grid", "config": config}))


def test_runs_have_their_seeds_and_the_fields_that_differ(tmp_path):
    write_run(tmp_path / "a", [9.0, None], seed=3, **{RATE: 1e-3})
    write_run(tmp_path / "deep" / "b", [8.0], seed=4, **{RATE: 1e-3, SIZES: [32]})
    rows = read_curves(tmp_path)
    metrics = [(1, 9.0), (2, None), (1, 8.0)]
    runs = [("a", 3, "[64, 64]"), ("a", 3, "[64, 64]"), ("deep/b", 4, "[32]")]
    assert rows == [
        {"run": run, "seed": seed, SIZES: sizes, "updates": update, "agent/episode_return": value}
        for (run, seed, sizes), (update, value) in zip(runs, metrics, strict=True)
    ]


def test_a_member_that_continues_in_another_batch_is_one_curve(tmp_path):
    """As in a search with halving: member 0 continues in the second rung."""
    write_sweep(tmp_path)
    write_members(tmp_path / "batches" / "000", (0, 999, 1000), **{RATE: 0.1})
    write_members(tmp_path / "batches" / "001", (0,), update=2, **{RATE: 0.1})
    columns = ("run", "seed", RATE, "member", "updates")
    members = [("000", 0, 1), ("000", 0, 2), ("999", 999, 1), ("1000", 1000, 1)]
    expected = [(run, 7, 0.1, number, updates) for run, number, updates in members]
    assert read_curves(tmp_path) == [dict(zip(columns, row, strict=True)) for row in expected]


def test_members_have_the_configuration_of_their_sweep_with_their_values(tmp_path):
    """The schedule of the learning rate is a fraction in sweep.yaml, but no difference to a run."""
    network, clip, gamma = (f"policies.agent.{name}" for name in ("network", "clip", "gamma"))
    write_run(tmp_path / "run", [9.0])
    write_sweep(tmp_path / "sweep", seed=3, **{clip: 0.3})
    sizes = {"hidden_sizes": [32]}
    write_members(tmp_path / "sweep" / "groups", (0,), **{gamma: 0.9, network: sizes})
    run, member = read_curves(tmp_path)
    assert (run["run"], run["seed"], run[SIZES]) == ("run", 0, "[64, 64]")
    inside = [name for name in run if name.startswith(f"{network}.")]
    assert {name for name in run if "." in name} == {clip, gamma, *inside}
    settings = {clip: 0.3, gamma: 0.9, network: '{"hidden_sizes": [32]}'}
    assert (run[clip], run[gamma]) == (0.2, 0.99)
    assert member == {"run": "sweep/000", "seed": 7, **settings, "member": 0, "updates": 1}


def test_a_sweep_beside_a_run_has_columns_of_other_values_only(tmp_path):
    """config.yaml contains all parameters of the environment, and sweep.yaml the given ones."""
    complete = complete_env_params(load_config("cartpole_ppo")).env_params
    length = {"total_env_steps": 4096}
    write_run(tmp_path / "run", [9.0], env_params=complete, **length)
    write_sweep(tmp_path / "sweep")
    write_members(tmp_path / "sweep" / "groups", (0,), **length, **{"env_params.length": 0.7})
    run, member = read_curves(tmp_path)
    assert [name for name in run if "." in name] == ["env_params.length"]
    assert (run["env_params.length"], member["env_params.length"]) == (0.5, 0.7)
    write_run(tmp_path / "other", [9.0], env_params=complete | {"gravity": 1.0}, **length)
    gravity = {row["run"]: row["env_params.gravity"] for row in read_curves(tmp_path)}
    default = complete["gravity"]
    assert gravity == {"run": default, "sweep/000": default, "other": 1.0}


def test_a_value_for_all_policies_is_a_column_for_each(tmp_path):
    write_sweep(tmp_path, "tag_small")
    write_members(tmp_path / "groups", (0,), **{"policies.all.learning_rate": 0.1})
    rates = {f"policies.{name}.learning_rate": 0.1 for name in ("tagger", "runner")}
    [row] = read_curves(tmp_path)
    assert row == {"run": "000", "seed": 7, **rates, "member": 0, "updates": 1}
    [row] = read_curves(tmp_path / "groups")  # without sweep.yaml, policies are unknown
    assert row["policies.all.learning_rate"] == 0.1


def test_a_single_run_has_no_settings(tmp_path, monkeypatch):
    write_run(tmp_path / "a", [9.0])
    expected = [{"run": ".", "seed": 0, "updates": 1, "agent/episode_return": 9.0}]
    assert read_curves(tmp_path / "a") == expected
    monkeypatch.chdir(tmp_path / "a")
    assert read_curves(".") == expected


def test_curves_go_into_pandas(tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install -e '.[dev]'")
    write_run(tmp_path / "a", [9.0, None], **{SIZES: [32]})
    write_run(tmp_path / "b", [8.0], **{SIZES: [64]})
    data = pandas.DataFrame(read_curves(tmp_path))
    assert data["agent/episode_return"].dtype == "float64"
    assert data.groupby(SIZES)["agent/episode_return"].mean().to_dict() == {"[32]": 9, "[64]": 8}


def test_missing_folders_and_damaged_files_are_named(tmp_path):
    write_run(tmp_path / "first", [9.0])
    with pytest.raises(FileNotFoundError, match=r"folder = .*frist: must exist.*'first'\?"):
        read_curves(tmp_path / "frist")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"folder = .*empty: must contain a run"):
        read_curves(tmp_path / "empty")
    (tmp_path / "first" / "metrics.jsonl").write_text("{}\nno JSON\n")
    with pytest.raises(ValueError, match=r"first/metrics.jsonl, line 2"):
        read_curves(tmp_path)
    write_run(tmp_path / "members", [9.0])
    number, wrong = {"member": 0}, ({"values": 3}, {"config": 3}, {"config": {"policies": 3}})
    wrong = ({"values": {"total_env_steps": [1]}}, *wrong)
    for members in (3, [3], [{}], *([number | own] for own in wrong)):
        text = json.dumps({"size": 1, "members": members})
        (tmp_path / "members" / "members.json").write_text(text)
        with pytest.raises(ValueError, match=r"members/members.json is damaged"):
            read_curves(tmp_path / "members")
    for text in ("mode: grid", "config: {env: 3}", "config: {environment: tag}"):
        (tmp_path / "members" / "sweep.yaml").write_text(text)
        with pytest.raises(ValueError, match=r"members/sweep.yaml"):
            read_curves(tmp_path / "members")
