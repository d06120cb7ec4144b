"""Programs that are kept whole between processes: when one is found, what makes another of it, and what goes wrong."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.experimental.compilation_cache import compilation_cache
from tiny_runs import numbers, small_config

from wdjax import named
from wdjax.experiments.sweep.population import compile_population
from wdjax.named import import_named
from wdjax.train import load_config, load_run, make_learner
from wdjax.train.algorithms.on_policy.update import PPO
from wdjax.train.devices import startup
from wdjax.train.host.programs import compile_and_init, compile_lowered, first_state, lower_chunk, telling
from wdjax.train.learner import kept
from wdjax.train.learner.init import abstract_state
from wdjax.train.learner.kept import OF_THE_HOST, Kept, name_of
from wdjax.train.load import list_presets

pytestmark = pytest.mark.usefixtures("quick_compile")

OPTION = {"xla_cpu_enable_fast_math": False}


def set_cache(values):
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Programs are kept there, as a command's process does, beside a cache of jax's that is empty and holds any."""
    cache = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0}
    before = {name: getattr(jax.config, name) for name in cache}
    monkeypatch.setattr(startup, "_KEEPS", [time.time()])
    monkeypatch.setattr(named, "_OTHERS", [])
    set_cache(cache)
    yield tmp_path / "programs"
    set_cache(before)


def never():
    pytest.fail("it is traced")


ZERO = jnp.float32(0)


def adding(number):
    """Returns what traces x + number."""
    return lambda: (jax.jit(lambda x: {"sum": x + number}).lower(ZERO), "words")


def program_of(number, name="it", options=None):
    return Kept(name, (ZERO,), adding(number), options).compile(options)


def test_what_is_kept_is_not_traced_again(folder):
    program = program_of(3)
    found = Kept("it", (ZERO,), never)
    assert found.words == "words"
    assert found.compile()(jnp.float32(1)) == program(jnp.float32(1)) == {"sum": 4}


def test_other_options_make_another_program(folder):
    program_of(3, options=OPTION)
    found = Kept("it", (ZERO,), never, OPTION)
    assert found.compile(OPTION)(ZERO) == {"sum": 3}
    with pytest.raises(pytest.fail.Exception, match="traced"):
        found.compile()
    assert program_of(4)(ZERO) == {"sum": 4}
    assert len(list(folder.iterdir())) == 2


def test_other_shapes_are_another_program(folder):
    program_of(3)
    with pytest.raises(pytest.fail.Exception, match="traced"):
        Kept("it", (jnp.zeros(2),), never)
    with pytest.raises(pytest.fail.Exception, match="traced"):
        Kept("it", (jnp.int32(0),), never)


def test_without_a_name_nothing_is_kept(folder):
    assert program_of(3, name=None)(ZERO) == {"sum": 3}
    assert not folder.exists()


@pytest.mark.parametrize("damage", [
    lambda content: content[: len(content) // 2], lambda content: b"", lambda content: content[:-1] + b"\0",
    lambda content: content + b"more",
])  # fmt: skip
def test_what_is_damaged_is_traced_and_kept_again(folder, damage):
    program_of(3)
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert program_of(4)(ZERO) == {"sum": 4}
    assert Kept("it", (ZERO,), never).compile()(ZERO) == {"sum": 4}


def test_what_cannot_be_loaded_is_traced(folder, monkeypatch):
    program_of(3)
    monkeypatch.setattr(kept, "deserialize_and_load", lambda *_, **__: 1 / 0)
    assert program_of(4)(ZERO) == {"sum": 4}


def test_nothing_is_read_that_somebody_else_has_written(folder, monkeypatch):
    program_of(3)
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    assert program_of(4)(ZERO) == {"sum": 4}


def test_a_folder_that_cannot_be_written_ends_no_run(folder):
    folder.write_text("a file")
    assert program_of(3)(ZERO) == {"sum": 3}


def test_results_that_no_other_process_knows_are_not_kept(folder):
    @struct.dataclass
    class Local:
        x: jax.Array

    trace = lambda: (jax.jit(lambda x: Local(x + 3)).lower(ZERO), "")  # noqa: E731
    assert Kept("it", (ZERO,), trace).compile()(ZERO).x == 3
    assert not list(folder.glob("*.bin"))


def test_a_cpu_s_program_of_jax_s_cache_is_not_kept(folder):
    program_of(3, name="one")
    assert program_of(3, name="other")(ZERO) == {"sum": 3}
    assert len(list(folder.iterdir())) == 1


def test_those_that_nobody_asked_for_go(folder, monkeypatch):
    monkeypatch.setattr(kept, "MOST", 2)
    program_of(1, name="a")
    program_of(2, name="b")
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    assert Kept("a", (ZERO,), never).words == "words"
    program_of(3, name="c")
    assert len(list(folder.iterdir())) == 2
    assert [Kept(name, (ZERO,), never).words for name in "ac"] == ["words", "words"]


def setup_of(**changes):
    return make_learner(small_config(**changes)).setup


@pytest.mark.parametrize("preset", [
    "cartpole_ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tag_small", "pendulum_ddpg", "acrobot")),
])  # fmt: skip
def test_a_name_is_the_same_where_the_program_is(preset, folder):
    size = {"num_envs": 8, "num_blocks": 4}
    changes = {
        "seed": 5, "total_env_steps": 5_000_000, "stop_at": {"updates": 9.0}, "updates_per_chunk": 7,
        "checkpoint_every_updates": 3, "checkpoint_every": 5, "keep_checkpoints": 2,
    }  # fmt: skip
    assert changes.keys() == set(OF_THE_HOST)
    learners = [make_learner(load_config(preset, **size, **own)) for own in ({}, changes)]
    assert len({name_of(learner.setup, "chunk", 4) for learner in learners}) == 1
    texts = {lower_chunk(own, abstract_state(own.setup), 4)[0]._trace()[0].as_text() for own in learners}
    assert len(texts) == 1


def test_a_name_is_another_where_anything_may_change_the_program(folder, monkeypatch):
    setup = setup_of()
    names = [name_of(setup, "chunk", 4), name_of(setup, "chunk", 5), name_of(setup, "init")]
    for changes in ({"num_envs": 16}, {"policies.agent.gamma": 0.9}, {"kernels": False}, {"reset": "fixed"}):
        names.append(name_of(setup_of(**changes), "chunk", 4))
    heavier = jax.tree.map(lambda leaf: leaf * 2, setup.env_params)
    names.append(name_of(dataclasses.replace(setup, env_params=heavier), "chunk", 4))
    with jax.default_matmul_precision("highest"):
        names.append(name_of(setup, "chunk", 4))
    for module, name, value in (
        (kept, "_sources", lambda begun: "others"), (kept, "_processor", lambda: "another"),
        (kept, "made_with", lambda: {"jax": "0.0"}), (kept, "why_unused", lambda: "no"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            names.append(name_of(setup, "chunk", 4))
    for variable in ("XLA_FLAGS", "JAX_ANYTHING", "NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            names.append(name_of(setup, "chunk", 4))
    assert None not in names
    assert len(set(names)) == len(names)
    assert name_of(setup, "chunk", 4) == names[0]


def test_no_setting_of_jax_says_where_something_lies_in_memory():
    assert not [name for name, value in jax.config.values.items() if " at 0x" in repr(getattr(jax.config, name, value))]


def test_sources_are_all_files_of_environments_and_training(monkeypatch, tmp_path):
    for name in ("train/learner/kept.py", "envs/a.py", "envs/b.csv", "experiments/c.py", "envs/__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(kept, "__file__", str(tmp_path / "train/learner/kept.py"))
    later = time.time() + 1
    digest = lambda: kept._sources.__wrapped__(later)  # noqa: E731
    first = digest()
    for name, matters in (
        ("envs/a.py", True), ("envs/b.csv", True), ("experiments/c.py", True), ("experiments/d.csv", False),
        ("envs/__pycache__/a.pyc", False), ("envs/.#a.py", False),
    ):  # fmt: skip
        (tmp_path / name).write_text("2")
        assert (digest() != first) == matters, name
        first = digest()
    with pytest.raises(OSError, match="changed meanwhile"):
        kept._sources.__wrapped__(0.0)


def test_what_cannot_be_read_has_no_name(folder, monkeypatch):
    def gone(begun):
        raise FileNotFoundError

    monkeypatch.setattr(kept, "_sources", gone)
    assert name_of(setup_of(), "chunk") is None


@pytest.mark.slow
def test_every_preset_has_a_name_of_its_own(folder):
    names = [name_of(make_learner(load_config(preset, devices=1)).setup, "chunk") for preset in list_presets()]
    assert None not in names
    assert len(set(names)) == len(names)


class OwnPPO(PPO):
    """Of a module that is not wdjax's."""


def test_code_of_one_s_own_and_what_is_read_elsewhere_have_no_name(folder, monkeypatch):
    setup = setup_of()
    assert name_of(setup, "chunk")
    policy = dataclasses.replace(setup.policies["agent"], algorithm=OwnPPO())
    assert name_of(dataclasses.replace(setup, policies={"agent": policy}), "chunk") is None
    for env in ("my.module:Game", "registered", "gymnax:CartPole-v1"):
        config = dataclasses.replace(setup.config, env=env)
        assert name_of(dataclasses.replace(setup, config=config), "chunk") is None
    assert name_of(dataclasses.replace(setup, num_devices=2), "chunk") is None
    with jax.default_device(jax.devices()[1]):
        assert name_of(setup, "chunk") is None
    with monkeypatch.context() as patch:
        patch.setattr(kept, "begin_elsewhere", lambda setup: True)
        assert name_of(setup, "chunk") is None
    with monkeypatch.context() as patch:
        patch.setattr(startup, "_KEEPS", [])  # a notebook
        assert name_of(setup, "chunk") is None
    monkeypatch.setattr(named, "_OTHERS", [])
    assert name_of(setup, "chunk")
    import_named("callback", "colorsys:rgb_to_hls")
    assert name_of(setup, "chunk") is None


@pytest.mark.parametrize(("cache", "used", "where"), [
    ("/a", True, Path("/a/programs")), ("/a", False, None), (None, True, None), ("gs://bucket/a", True, None),
])  # fmt: skip
def test_programs_are_kept_in_jax_s_own_cache_where_that_is_a_folder(monkeypatch, cache, used, where):
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_enable_compilation_cache")}
    try:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_enable_compilation_cache", used)
        assert kept._folder() == where
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_a_chunk_and_a_first_state_that_are_kept_have_the_same_numbers(folder, monkeypatch):
    learner = make_learner(small_config())
    like, told = abstract_state(learner.setup), []
    monkeypatch.setattr("wdjax.train.host.programs.words_of_kernels", lambda heard: "By kernels: nothing")
    states = []
    for _ in range(2):
        with telling(told.append):
            state, program, _ = compile_and_init(learner, like, 5, 2)
        states.append(program(state, np.int32(2))[0])
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.policies))  # it is donated
        with monkeypatch.context() as patch:  # from the second on
            patch.setattr("wdjax.train.host.programs.run_up_to", lambda *_: never())
            assert compile_lowered(*lower_chunk(learner, like, 2)[:2])
    assert told == ["By kernels: nothing"] * 2
    jax.tree.map(np.testing.assert_array_equal, states[0].policies, states[1].policies)
    again, _ = program(first_state(learner, jax.random.key(5)), 2)
    jax.tree.map(np.testing.assert_array_equal, states[0].policies, again.policies)
    assert len(list(folder.iterdir())) == 2


def test_runs_side_by_side_are_kept_too(folder, monkeypatch):
    setup = setup_of()
    one = abstract_state(setup)
    several = lambda size: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype), one)  # noqa: E731
    compile_population(setup, several(2), 2)
    monkeypatch.setattr("wdjax.experiments.sweep.population.run_up_to", lambda *_: never())
    compile_population(setup, several(2), 2)
    for size, most in ((3, 2), (2, 3)):
        with pytest.raises(pytest.fail.Exception, match="traced"):
            compile_population(setup, several(size), most)


COMMAND = """
import sys
from wdjax.experiments import cli
if sys.argv.pop() == "kept":  # what would be traced fails
    from wdjax.train.evaluation import evaluate
    from wdjax.train.host import programs
    from wdjax.train.learner import learner
    programs.run_up_to = evaluate.play_episodes = learner.init = lambda *_: 1 / 0
cli.main()
"""


@pytest.mark.slow
def test_a_command_finds_what_the_one_before_has_kept_and_comes_to_the_same_run(tmp_path):
    variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "XLA_FLAGS": ""}
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)

    def run(name, which, *flags):
        size = ["--num-envs", "8", "--num-blocks", "8", "--rollout-length", "16", "--updates-per-chunk", "2"]
        arguments = ["train", "cartpole_ppo", *size, "--no-pictures", "--workdir", str(tmp_path / name), *flags, which]
        subprocess.run([sys.executable, "-c", COMMAND, *arguments], env=variables, check=True, timeout=300)

    run("traced", "traced", "--total-env-steps", "1280")
    run("kept", "kept", "--total-env-steps", "640")
    run("kept", "kept", "--total-env-steps", "1280", "--resume")
    traced, found = (numbers(load_run(tmp_path / name)[1]) for name in ("traced", "kept"))
    for a, b in zip(traced, found, strict=True):
        np.testing.assert_array_equal(a, b)
