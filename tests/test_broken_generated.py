"""Generated broken environments are accepted or raise a clear error of wdjax.

One part of a correct toy (an output of `reset` or `step`, a space, `groups`, `default_params`, or a
leaf of it) is replaced. `check_env` and a learner must either raise, from a line of wdjax, or
an environment that `check_env` accepts must train.
"""

import math
import traceback
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from toy_contract import Line, Team

import wdjax
from wdjax import Box, Dict, Discrete, MultiDiscrete
from wdjax.train import NetworkConfig, PolicyConfig, TrainConfig, make_learner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compile")]
OURS = str(Path(wdjax.__file__).resolve().parent.parent)
TESTS = str(Path(__file__).resolve().parent)
SOME = hypothesis.settings(  # each example checks an environment and trains
    max_examples=hypothesis.settings.default.max_examples // 2,
    suppress_health_check=[
        *hypothesis.settings.default.suppress_health_check,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)
FEW = hypothesis.settings(SOME, max_examples=hypothesis.settings.default.max_examples // 3)


class Plain:
    """Is not an array."""


# replacements computed from an array
BENT = {
    "more axes": lambda leaf: leaf[None],
    "one number": lambda leaf: leaf.reshape(-1)[0],
    "twice as long": lambda leaf: jnp.concatenate([jnp.atleast_1d(leaf)] * 2),
    "empty": lambda leaf: jnp.zeros((0, *leaf.shape), leaf.dtype),
    "whole": lambda leaf: leaf.astype(jnp.int32),
    "short": lambda leaf: leaf.astype(jnp.int8),
    "half": lambda leaf: leaf.astype(jnp.float16),
    "float": lambda leaf: leaf.astype(jnp.float32),
    "complex": lambda leaf: leaf.astype(jnp.complex64),
    "flag": lambda leaf: leaf.astype(bool),
    "NaN": lambda leaf: leaf * jnp.nan,
    "infinite": lambda leaf: leaf + jnp.inf,
    "negative": lambda leaf: -1 - leaf,
    "huge": lambda leaf: leaf + jnp.asarray(2**30, leaf.dtype),
    "on the host": np.asarray,
    "a branch": lambda leaf: leaf if leaf.sum() > 0 else -leaf,
}
# replacements of any value
OTHER = {
    "None": None,
    "a word": "left",
    "no number": math.nan,
    "a bool": True,
    "a number": 3,
    "a negative": -2.5,
    "a list": [1, 2],
    "an empty dict": {},
    "an empty tuple": (),
    "an object": Plain(),
    "a class": Plain,
    "a function": len,
    "a dict of words": {"worker": "a", "pilot": None},
    "other groups": {"x": jnp.zeros(2)},
}
SPACES = {
    "a number": Discrete(3),
    "many": Discrete(2**31 - 1),
    "two": MultiDiscrete((2, 3)),
    "a box": Box(-1.0, 1.0, (2,)),
    "point": Box(1.0, 1.0, ()),
    "unbounded": Box(),
    "nested": Dict({"a": Dict({"b": Box()})}),
    "batched": Box(-1.0, 1.0, (2,)).batch(3),
    "groups": Dict({"worker": Box().batch(2), "pilot": Discrete(4).batch(1)}),
}


def bend(value, path, how):
    """Replace the part of a value at a path of numbers."""
    children, treedef = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
    if path and children and treedef.num_nodes > 1:
        where = path[0] % len(children)
        children[where] = bend(children[where], path[1:], how)
        return jax.tree.unflatten(treedef, children)
    if how in BENT and hasattr(value, "astype"):
        return BENT[how](value)
    return OTHER.get(how, value)


@st.composite
def broken(draw):
    """Draw (environment, description of its change)."""
    toy, method = (
        draw(st.sampled_from([Line, Team])),
        draw(st.sampled_from(["reset", "step", "step"])),
    )
    path = draw(st.lists(st.integers(0, 5), max_size=4))
    how = draw(st.sampled_from([*BENT, *OTHER]))
    original = getattr(toy, method)

    def bent(self, *arguments):
        return bend(original(self, *arguments), path, how)

    return type("Mutant", (toy,), {method: bent})(), f"{toy.__name__}.{method}{path}: {how}"


@st.composite
def misdeclared(draw):
    """Draw an environment with a wrong space, groups or params, and its description."""
    toy = draw(st.sampled_from([Line, Team]))
    name = draw(st.sampled_from(["observation_space", "action_space", "groups", "default_params"]))
    how = draw(
        st.sampled_from([*OTHER, *SPACES]) if name.endswith("space") else st.sampled_from([*OTHER])
    )
    value = SPACES[how] if how in SPACES and name.endswith("space") else OTHER[how]
    part = (lambda self, params: value) if name.endswith("space") else property(lambda self: value)
    return type("Mutant", (toy,), {name: part})(), f"{toy.__name__}.{name}: {how}"


def is_rejected(function, *arguments):
    """Return whether a function raises, from a line of wdjax or of the environment."""
    try:
        function(*arguments)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        by_us = last.startswith(OURS) and isinstance(error, ValueError | TypeError) and str(error)
        if not (by_us or last.startswith(TESTS)):
            raise AssertionError(f"{last} raises {type(error).__name__}: {error}") from error
        return True
    return False


def learner_of(env):
    """Register an environment and return a learner of all its policies."""
    names = ["worker", "pilot"] if isinstance(env, Team) else ["agent"]
    wdjax.register("mutant", env, replace=True)
    policy = PolicyConfig(network=NetworkConfig((4,), "tanh"), algorithm="A2C")  # compiles fast
    config = TrainConfig(
        env="mutant", policies=dict.fromkeys(names, policy), num_envs=2, rollout_length=3
    )
    return make_learner(config)


def train(env):
    """Train all policies for one update. Check for finite params."""
    learner = learner_of(env)
    state, _ = learner.run(learner.init(jax.random.key(0)), num_updates=1)
    for policy in state.policies.values():
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(policy.params))


def trace(env):
    """Trace one update, without compiling it."""
    learner = learner_of(env)
    jax.eval_shape(learner.update, jax.eval_shape(learner.init, jax.random.key(0)))


def check_and_train(env):
    if not is_rejected(lambda: wdjax.check_env(env, num_steps=200)):
        assert not is_rejected(train, env)
    else:
        is_rejected(trace, env)


@FEW  # more of them are accepted, and train
@given(broken())
def test_generated_outputs_of_reset_and_step(registry, case):
    env, description = case
    hypothesis.note(description)
    check_and_train(env)


@SOME
@given(misdeclared())
def test_generated_declarations(registry, case):
    env, description = case
    hypothesis.note(description)
    check_and_train(env)
