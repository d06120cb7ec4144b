"""mypy and pyright on user scripts: correct code passes, typos are reported."""

import re
import shutil
import subprocess
import sys

import pytest
from test_readme import BLOCKS

# Lines with `# found` must be reported, all others must pass. `# is X` is the expected type of the
# name.
SCRIPT = """
import functools

import jax
import jax.numpy as jnp
import wdjax
import wdjax.experiments.sweep
import wdjax.train
from wdjax.experiments.sweep import swep  # found
from wdjax.train import Trainr  # found
from wdjax.train import Trainer, evaluate, load_config, make_learner, with_hypers

wdjax.vectorise  # found
wdjax.train.load_cfg  # found
wdjax.adapters.to_gymnasum  # found

env, params = wdjax.make("cartpole", length=0.7)
params.lenght  # found
longer = params.replace(length=1.0)
longer  # is Params
obs, state = env.reset(jax.random.key(0), longer)
obs  # is Array
state  # is State
state.theta_dt  # found
key = jax.random.key(1)
obs, state, reward, terminated, truncated, info = env.step(key, state, jnp.int32(1), params)
state.theta_dot  # is Array

tag, tag_params = wdjax.make("tag_continuous", num_taggers=5)
seen, tag_state = tag.reset(jax.random.key(0), tag_params)
seen["tagger"]  # is Array
tag_state.active  # is Array
tag_state.theta_dot  # found
other, _ = wdjax.make("gymnax:CartPole-v1")
other  # is Env
states = wdjax.vectorize(env, 4).reset(jax.random.key(0), params)[1]
states.replace(starts=None)  # is VectorState

learner = make_learner(load_config("cartpole_ppo"))
train_state = learner.init(jax.random.key(0))
train_state.num_updatse  # found
train_state, metrics = learner.run(train_state, num_updates=3)
train_state.replace(num_updates=jnp.int32(0))  # is TrainState
metrics["agent/loss"]  # is Array
learner.run(train_state, num_update=3)  # found
learner.update(3)  # found
evaluate(learner, train_state, jax.random.key(1))  # is Episodes
"""


def check(command, folder, files):
    result = subprocess.run(
        [*command, *files], cwd=folder, capture_output=True, text=True, check=False
    )
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """Return a folder with the script and the blocks of the README."""
    folder = tmp_path_factory.mktemp("user")
    revealed = re.sub(
        r"^(.+?)  # is (\w+)$", r"reveal_type(\1)  # is \2", SCRIPT.lstrip(), flags=re.MULTILINE
    )
    (folder / "script.py").write_text(revealed)
    for name, block in zip(("notebook", "library"), BLOCKS, strict=False):
        (folder / f"{name}.py").write_text(block)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_infer_types_and_report_typos(checker, scripts):
    python = sys.executable
    if checker == "mypy":
        pytest.importorskip("mypy")
        command = [
            python,
            "-m",
            "mypy",
            "--strict",
            "--no-incremental",
            "--python-executable",
            python,
        ]
    elif shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    else:
        command = ["pyright", "--pythonpath", python]
    output = check(command, scripts, ["script.py", "notebook.py", "library.py"])
    errors = {
        (file, int(line)) for file, line in re.findall(r"(\w+)\.py:(\d+)(?::\d+ -|:) error", output)
    }
    lines = dict(enumerate((scripts / "script.py").read_text().splitlines(), 1))
    assert errors == {
        ("script", number) for number, line in lines.items() if line.endswith("# found")
    }, output
    for number, line in lines.items():
        if "  # is " in line:
            known = re.search(rf"script\.py:{number}:.*\"(?:[\w.]*\.)?{line.split()[-1]}\"", output)
            assert known, f"{line}\n{output}"
