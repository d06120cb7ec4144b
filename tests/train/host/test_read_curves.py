"""Curves of run folders: columns, settings that differ, and errors for damaged folders."""

import json

import pytest
import yaml

from wdjax.train import load_config, plain_config, read_curves

SIZES, RATE = "policies.agent.network.hidden_sizes", "policies.agent.learning_rate"


def write_run(folder, returns, **changes):
    """Write the configuration and metrics of a run, without training it."""
    config = plain_config(load_config("cartpole_ppo", **changes))
    folder.mkdir(parents=True)
    text = yaml.safe_dump({"wdjax": "0.3.0", "made_with": {"python": str(folder)}, **config})
    (folder / "config.yaml").write_text(text)
    rows = [{"updates": i + 1, "agent/episode_return": value} for i, value in enumerate(returns)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


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
    (tmp_path / "sweep.yaml").write_text("mode: search\n")
    for place, (numbers, update) in enumerate([((0, 1), 1), ((0,), 2)]):
        folder = tmp_path / "batches" / f"{place:03d}"
        folder.mkdir(parents=True)
        members = [{"member": n, "seed": 7, "values": {RATE: 0.1 * n}} for n in numbers]
        (folder / "members.json").write_text(json.dumps({"members": members}))
        rows = [{"member": n, "updates": update} for n in numbers]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ("run", "seed", RATE, "member", "updates")
    expected = [("000", 7, 0.0, 0, 1), ("000", 7, 0.0, 0, 2), ("001", 7, 0.1, 1, 1)]
    assert read_curves(tmp_path) == [dict(zip(columns, row, strict=True)) for row in expected]


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
    for text in ("[]", '{"members": [{}]}', '{"members": [{"member": 0, "values": 3}]}'):
        (tmp_path / "members" / "members.json").write_text(text)
        with pytest.raises(ValueError, match=r"members/members.json is damaged"):
            read_curves(tmp_path / "members")
