"""The benchmark suite: programs are timed, errors are clear."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.experiments.benchmarks import agents, agreement, memory, runs, startup, suite
from wdjax.experiments.benchmarks.measure import act, make_program, measure, step_at_random, sum_of
from wdjax.experiments.benchmarks.rows import WORKLOADS, Target, Workload
from wdjax.experiments.benchmarks.timing import cells_of, median_and_spread, short
from wdjax.experiments.cli import main
from wdjax.train import make_learner
from wdjax.train.host import chunks

TINY = Workload(
    preset="tag_gridworld", changes={"num_envs": 2, "rollout_length": 3}, small={}, num_updates=2,
    targets={"training": Target(None, "nobody", 1.0, 2.0)},
)  # fmt: skip


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


# Every kind of program once at full size, without compilation.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tier", "passes"),
    [
        ("tag_gridworld_1000", "stepping", 100), ("tag_gridworld_1000", "inference", 4),
        ("tag_continuous_1000", "training", 2), ("cartpole_ppo_256_seeds", "training", 20),
        ("cartpole_ppo_256_seeds", "inference", 20),
    ],
)  # fmt: skip
def test_programs_have_the_documented_shapes(name, tier, passes):
    row = WORKLOADS[name]
    program, config = make_program(row, tier), row.config()
    shapes = jax.eval_shape(program.function, *jax.eval_shape(program.start))
    assert program.passes == passes
    members = (row.num_members() or 1) if tier != "stepping" else 1
    per_pass = config.num_envs * (1 if tier == "stepping" else config.rollout_length)
    assert program.env_steps == passes * per_pass * members
    groups = wdjax.make(config.env, **config.env_params)[0].groups
    assert program.agents == (sum(groups.values()) or 1)
    if tier == "stepping":
        assert (shapes.shape, shapes.dtype) == ((), jnp.float32)
    elif tier == "inference":
        assert shapes[1].shape == ((256,) if row.members else ())
    else:
        leading = (256, 20) if row.members else (2,)
        assert {leaf.shape for leaf in jax.tree.leaves(shapes[1])} == {leading}


@pytest.mark.slow
def test_random_play_sums_everything(quick_compile):
    """One step by hand: each observation, reward and end flag once."""
    env, params = wdjax.make(
        "cartpole", episode_length=1
    )  # ends in this step, so that obs is the next start
    replicas = wdjax.vectorize(env, 3)

    def step(key, state):
        action_key, step_key = jax.random.split(jax.random.split(key, 1)[0])
        action = env.action_space(params).batch(3).sample(action_key)
        obs, _, *ends, _ = replicas.step(step_key, state, action, params)
        return obs, *ends

    _, state = jax.jit(replicas.reset)(jax.random.key(0), params)
    key = jax.random.key(1)
    obs, reward, terminated, truncated = jax.jit(step)(key, state)
    expected = sum(
        np.asarray(leaf, np.float64).sum() for leaf in (obs, reward, terminated, truncated)
    )
    assert truncated.all()
    assert reward.sum() == 3
    total = jax.jit(lambda: step_at_random(replicas, 1, key, state, params))()
    np.testing.assert_allclose(total, expected, rtol=1e-6)


@pytest.mark.slow
def test_inference_sums_the_rollout(quick_compile):
    learner = make_learner(TINY.config())
    state = learner.init(jax.random.key(0))
    after, total = jax.jit(lambda state: act(learner, 1, state))(state)
    expected, played = learner.rollout(state)
    np.testing.assert_allclose(total, sum_of(played), rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, after.obs, expected.obs)
    assert after.key == expected.key != state.key
    assert int(after.num_updates) == 0
    jax.tree.map(np.testing.assert_array_equal, after.policies, state.policies)


@pytest.mark.slow
def test_measured_numbers(quick_compile):
    result = json.loads(json.dumps(measure(TINY, "training", small=False, repeats=3)))
    median, _ = median_and_spread(result["seconds"])
    assert len(result["seconds"]) == 3
    assert (result["small"], result["agents"]) == (False, 5)
    assert result["env_steps"] == 2 * 2 * 3
    assert result["env_steps_per_second"] == pytest.approx(12 / median)
    assert result["agent_steps_per_second"] == pytest.approx(5 * 12 / median)
    assert result["ms_per_pass"] == pytest.approx(1e3 * median / 2)
    assert result["compile_seconds"] > 0
    assert result["compiled_bytes"]["all"] == sum(
        result["compiled_bytes"][p] for p in ("argument", "output", "temp")
    )
    assert (result["peak_bytes"], result["peak_bytes_from"]) == (
        result["compiled_bytes"]["all"],
        "compiler",
    )
    assert [result[name] for name in ("others", "must", "aim")] == [None, 1.0, 2.0]
    assert result["of_must"] == result["env_steps_per_second"]
    assert (
        "tag_gridworld, 5 agents, 2 envs, 3-step rollouts; shared A2C 32-32" in result["workload"]
    )
    assert jax.__version__ in result["machine"]


def test_compile_only_runs_nothing(quick_compile):
    row = Workload(
        {"env": "cartpole", "num_envs": 10**12, "rollout_length": 2}, {}
    )  # no machine holds 16 TB
    result = measure(row, "stepping", small=False, repeats=0)
    assert result["compiled_bytes"]["argument"] > 10**13
    assert "seconds" not in result


def test_median_and_spread():
    assert median_and_spread([3.0, 1.0, 2.0, 5.0, 2.5]) == (2.5, 1.6)


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "-"), (17.34e9, "17.3 G"), (1.2e6, "1.20 M"), (999.6e3, "1.00 M"), (42_600, "42.6 k"),
        (158e3, "158 k"),
     (12, "12.0"), (0.5, "0.50")],
)  # fmt: skip
def test_short_numbers(value, words):
    assert short(value) == words


def test_suite_prints_a_table_and_writes_json(monkeypatch, capsys, tmp_path):
    """Each row is measured once, tier by tier; a failed row sets status 1 at the end."""
    rate = {
        "env_steps_per_second": 3e7,
        "agent_steps_per_second": 1.5e8,
        "ms_per_pass": 6.67,
        "spread": 0.02,
    }
    targets = {"others": 2.90e6, "must": 6e7, "aim": 1.5e8, "of_must": 0.5}
    common = {"machine": "abacus", "workload": "words", "compile_seconds": 3.0}
    whole = {
        "alone": 3e7,
        "ratio": 0.97,
        "updates_per_chunk": 1066,
        "chunks": 9,
        "from_start": 12.0,
    }
    measured = []

    def measure_apart(name, tier, parsed):
        measured.append((name, tier))
        if tier == "inference":
            return {"error": "out of memory"}
        if tier == "runs":
            return {**common, **whole, "env_steps_per_second": 2.9e7}
        memory = {"peak_bytes": 2e9, "peak_bytes_from": "device"}
        return {**common, **memory, **rate, **(targets if tier == "training" else {})}

    monkeypatch.setattr(suite, "measure_apart", measure_apart)
    file = tmp_path / "new" / "out.json"
    with pytest.raises(SystemExit) as ended:
        main(["bench", "tag_gridworld", "cartpole_10k", "--json", str(file)])
    assert ended.value.code == 1
    tiers = ["stepping", "inference", "training", "runs"]
    expected = [("tag_gridworld", tier) for tier in tiers]
    expected.insert(1, ("cartpole_10k", "stepping"))
    assert measured == expected
    assert [(row["row"], row["tier"]) for row in json.loads(file.read_text())] == expected
    out = capsys.readouterr().out
    cells = (
        "tag_gridworld",
        "30.0 M",
        "150 M",
        "6.67",
        "2%",
        "3.0",
        "2*",
        "2.90 M",
        "60.0 M",
        "150 M",
        "0.50",
    )
    assert cells in tables(out)
    assert ("tag_gridworld", "29.0 M", "30.0 M", "0.97", "1,066", "9", "3.0", "12.0") in tables(out)
    assert "tag_gridworld, env steps/s: 29.0 M, program alone: 30.0 M, ratio: 0.97" in out
    assert "failed: out of memory" in out
    assert "abacus" in out


def tables(out):
    """Return the cells of each line of the printed tables."""
    lines = (line.strip("│") for line in out.splitlines() if line.startswith("│"))
    return [tuple(cell.strip() for cell in line.split("│")) for line in lines]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tag_gridword"], "unknown row 'tag_gridword': did you mean 'tag_gridworld'?"),
        (["--tier", "train"], "unknown tier 'train': did you mean 'training'?"),
        (
            ["cartpole_1m", "--tier", "training"],
            "--tier training: must be a tier of cartpole_1m (stepping)",
        ),
        (["startup", "--tier", "stepping"], "must be a tier of startup (startup)"),
        (["--repeats", "0"], "--repeats = 0: must be at least 1"),
        (["--repeats", "many"], "--repeats: invalid int value: 'many'"),
        (["--repeat", "5"], "unknown option '--repeat': did you mean '--repeats'?"),
        (["--json"], "--json: expected one argument"),
        (["--json", "."], "is a directory"),
    ],
)
def test_bad_arguments_are_rejected(arguments, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "JAX_COMPILATION_CACHE_DIR", "unused"
    )  # leaves the settings of the tests alone
    assert words.lower() in refused(arguments, capsys).lower()


@pytest.mark.slow
def test_a_row_runs_in_a_new_process_without_tyro(tmp_path):
    """As `python -m wdjax.experiments.benchmarks`, which does not need tyro."""
    file = tmp_path / "out.json"
    code = (
        "import runpy, sys; sys.modules['tyro'] = None\n"
        "runpy.run_module('wdjax.experiments.benchmarks', run_name='__main__', alter_sys=True)"
    )
    arguments = ["cartpole_10k", "--small", "--repeats", "1", "--json", str(file)]
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(file.read_text())
    assert (row["row"], row["env_steps"]) == ("cartpole_10k", 200_000)
    assert "Environment stepping" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("search", "broken"), [("all", 0), ("cells", 1)])
def test_wrong_neighbors_raise(search, broken, monkeypatch, quick_compile):
    found = agreement.compare_neighbors(12, 3, search)
    assert found.endswith("indices differ in 0, rows differ in 0")
    kernels = list(agreement.KERNELS[search])
    kernel = kernels[broken]
    kernels[broken] = lambda x, y, *rest, **options: kernel(y, x[::-1], *rest, **options)
    monkeypatch.setitem(agreement.KERNELS, search, tuple(kernels))
    with pytest.raises(RuntimeError, match=f"{['indices', 'rows'][broken]} differ in [1-9]"):
        agreement.compare_neighbors(12, 3, search)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "shift"), [("next_obs", 0.1), ("next_obs", np.nan), ("action", np.nan)]
)
def test_wrong_play_raises(field, shift, monkeypatch, quick_compile):
    play = agreement.play

    def shifted(env, params, policy, state, num_steps, record):
        def record_shifted(memory, step):
            return record(memory, step.replace(**{field: getattr(step, field) + shift}))

        return play(env, params, policy, state, num_steps, record_shifted)

    monkeypatch.setattr(agreement, "play", shifted)
    with pytest.raises(RuntimeError, match="pendulum, 3 envs"):
        agreement.compare_play("pendulum", num_envs=3, num_steps=2)


@pytest.mark.slow
def test_runs_measure_a_preset_with_the_trainer(monkeypatch, in_this_process, quick_compile):
    """In this process. A chunk takes 0.3 s instead of 2 s."""
    monkeypatch.setattr(runs, "in_new_process", in_this_process)
    monkeypatch.setattr(chunks, "SECONDS", 0.3)
    result = runs.measure("cartpole_ppo", 0.1)
    assert result["chunks"] >= 2
    assert result["updates_per_chunk"] > 1  # 0.3 s of updates of some milliseconds
    assert result["from_start"] > result["compile_seconds"] > 0
    assert result["ratio"] == pytest.approx(result["env_steps_per_second"] / result["alone"])
    cells = cells_of({"row": "cartpole_ppo", **result}, suite.COLUMNS)
    assert cells.keys() >= {"env steps/s", "program alone", "ratio", "chunks", "compile, s"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_memory_is_read_during_training(monkeypatch, quick_compile):
    monkeypatch.setattr(memory, "EVERY", 10)
    seen = memory.train(30)
    assert [chunk for chunk, _ in seen] == [10, 20, 30]
    assert all(50e6 < rss < 20e9 for _, rss in seen)


@pytest.mark.slow
def test_startup_measures_the_stages_of_train(monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    changes = ["--num-envs", "2", "--rollout-length", "2", "--seed", "3"]
    result = startup.measure(repeats=1, changes=changes)
    for seconds in (result["cold"], result["warm"]):
        parts = [seconds[stage] for stage in startup.STAGES]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(seconds["total"])
    assert result["cold"]["compile and init"] > result["warm"]["compile and init"]
    assert cells_of({"row": "startup", **result}, suite.COLUMNS)["must, s"] == "25.00 / 6.00"


@pytest.mark.slow
def test_worlds_with_more_agents_are_measured_and_drawn(tmp_path):
    config = agents.workload(20_000, 3).config()
    env, params = wdjax.make(config.env, **config.env_params)
    assert (env.groups, config.num_envs) == ({"tagger": 200, "runner": 19_800}, 3)
    assert params.grid_length**2 == pytest.approx(4 * env.num_agents)
    assert params.tagging_margin == pytest.approx(0.4)
    few, more = agents.measure([("stepping", 10), ("stepping", 40)], 1, 1)
    assert (few["agents"], more["agents"], "slope" in few) == (10, 40, False)
    ratio = more["ms_per_pass"] / few["ms_per_pass"]
    assert more["slope"] == pytest.approx(np.log(ratio) / np.log(4))
    agents.draw([few, more], tmp_path / "more.png")
    assert (tmp_path / "more.png").read_bytes().startswith(b"\x89PNG")
