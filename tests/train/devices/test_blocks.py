"""Random numbers of rollouts and shuffles depend only on the key and the block."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.train import load_config, make_learner, sample_blocks
from wdjax.train.algorithms.shuffle import shuffle
from wdjax.train.devices.blocks import step_keys
from wdjax.train.fast.cuda import Cuda
from wdjax.train.learning import Categorical, Gaussian
from wdjax.train.rollout.scan import rollout
from wdjax.train.state.engine import Engine

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(7)
# (steps, replicas, agents), blocks, minibatches
SHAPES = [
    ((4, 6, 1), 1, 1),
    ((4, 6, 1), 1, 3),
    ((2, 8, 3), 2, 4),
    ((6, 4, 2), 4, 3),
    ((1, 16, 1), 8, 2),
    ((16, 1, 5), 1, 2),
]


def places(index, shape):
    """Return (time, replica, agent) of indices of transitions, [..., 3]."""
    return np.stack(np.unravel_index(np.asarray(index), shape), axis=-1)


shuffled = jax.jit(shuffle, static_argnums=(1, 2, 3))


@pytest.mark.parametrize(("shape", "num_blocks", "minibatches"), SHAPES)
def test_shuffle_is_a_permutation(shape, num_blocks, minibatches):
    index = shuffled(KEY, shape, num_blocks, minibatches)
    rows = np.prod(shape)
    assert index.shape == (minibatches, rows // minibatches)
    np.testing.assert_array_equal(np.sort(index, axis=None), np.arange(rows))


@pytest.mark.parametrize(("shape", "num_blocks", "minibatches"), SHAPES)
def test_minibatches_have_equal_shares_of_blocks(shape, num_blocks, minibatches):
    index = shuffled(KEY, shape, num_blocks, minibatches)
    block = places(index, shape)[..., 1] // (shape[1] // num_blocks)
    share = index.shape[1] // num_blocks
    for row in block:
        np.testing.assert_array_equal(np.bincount(row, minlength=num_blocks), share)


def test_shuffle_mixes_time_replicas_and_agents():
    first = places(shuffled(KEY, (6, 4, 2), 2, 4), (6, 4, 2))[0]
    for axis, size in enumerate((6, 4, 2)):
        assert len(np.unique(first[:, axis])) > size / 2


def test_shuffles_differ_by_key_and_block():
    index = places(shuffled(KEY, (16, 2, 1), 2, 1), (16, 2, 1)).reshape(2, 16, 3)
    assert np.any(index[0, :, 0] != index[1, :, 0])
    assert np.any(shuffled(KEY, (16, 2, 1), 2, 1) != shuffled(jax.random.key(8), (16, 2, 1), 2, 1))


def test_shuffle_of_a_block_does_not_depend_on_other_blocks():
    few = places(shuffled(KEY, (4, 4, 3), 2, 2), (4, 4, 3)).reshape(2, 2, -1, 3)
    many = places(shuffled(KEY, (4, 8, 3), 4, 2), (4, 8, 3)).reshape(2, 4, -1, 3)
    np.testing.assert_array_equal(few, many[:, :2])  # [minibatch, block, row]


def test_keys_of_a_block_are_folded_from_the_key():
    keys = jax.random.key_data(step_keys(KEY, 5, 3, 4))
    for block in range(4):
        block_keys = jax.random.split(jax.random.fold_in(KEY, block), (5, 3))
        np.testing.assert_array_equal(keys[:, :, block], jax.random.key_data(block_keys))


def test_step_keys_are_distinct():
    keys = jax.random.key_data(step_keys(KEY, 5, 3, 4)).reshape(60, -1)
    assert len(np.unique(keys, axis=0)) == 60


@pytest.mark.slow
@pytest.mark.parametrize("distribution", [Categorical((4, 5), scalar=False), Gaussian(2, (2,))])
def test_actions_of_a_block_depend_on_its_key(distribution):
    keys = step_keys(KEY, 1, 1, 2)[0, 0]
    draw = jax.jit(functools.partial(sample_blocks, distribution))
    outputs = jax.random.normal(
        jax.random.key(1), (6, 2, distribution.num_outputs + distribution.num_free)
    )
    actions = draw(keys, outputs)
    for block, rows in enumerate((slice(0, 3), slice(3, 6))):
        alone = jax.jit(distribution.sample)(keys[block], outputs[rows])
        np.testing.assert_allclose(actions[rows], alone, rtol=1e-6)
    other = draw(keys, outputs.at[3:].add(1.0))
    np.testing.assert_array_equal(other[:3], actions[:3])
    assert jnp.any(draw(keys[::-1], outputs)[:3] != actions[:3])


def small_game():
    game = {"num_taggers": 1, "grid_length": 4, "episode_length": 3, "random_start": True}
    network = {"hidden_sizes": [8]}
    policies = {"tagger": {"network": network}, "runner": {"network": network, "trainable": False}}
    base = {
        "env": "tag_gridworld",
        "env_params": game,
        "num_envs": 6,
        "num_blocks": 3,
        "rollout_length": 7,
    }
    return make_learner(load_config({**base, "policies": policies}))


@pytest.mark.slow
def test_numbers_drawn_ahead_equal_those_drawn_in_steps():
    setup = small_game().setup
    state = make_learner(setup.config).init(KEY)
    in_each_step = dataclasses.replace(setup, engine=Engine())

    def play(setup, state):
        after, played = rollout(setup, state, KEY)
        return after.replicas, played

    ahead = jax.jit(functools.partial(play, setup))(state)
    stepwise = jax.jit(functools.partial(play, in_each_step))(state)
    assert setup.engine.drawn_ahead(setup).env
    assert not in_each_step.engine.drawn_ahead(in_each_step).env
    jax.tree.map(np.testing.assert_array_equal, ahead, stepwise)
    assert jnp.any(ahead[1].over)


class Kernels(Cuda):
    """A policy that acts by a kernel."""

    def acts_by_kernel(self, policy):
        return True


@pytest.mark.slow
def test_numbers_are_drawn_ahead_if_all_policies_have_kernels():
    setup = small_game().setup
    keys = step_keys(KEY, 7, 1 + len(setup.policies), 3)

    def with_engines(*engines):
        pairs = zip(setup.policies.items(), engines, strict=True)
        policies = {
            name: dataclasses.replace(policy, engine=engine) for (name, policy), engine in pairs
        }
        return dataclasses.replace(setup, engine=Cuda(), policies=policies)

    both = with_engines(Kernels(), Kernels())
    ahead, drawn = both.engine.draw(both, {}, keys)
    in_a_step = setup.replicas.draw_keys(keys[4, 0])
    jax.tree.map(same_keys, jax.tree.map(lambda leaf: leaf[4], ahead), in_a_step)
    assert drawn["tagger"].dtype == jnp.float32
    assert list(setup.policies) == ["tagger", "runner"]
    one = with_engines(Kernels(), Cuda())
    env_keys, drawn = one.engine.draw(one, {}, keys)
    same_keys(env_keys, keys[:, 0])
    assert drawn["tagger"].dtype == jnp.float32
    same_keys(drawn["runner"], keys[:, 2])


def same_keys(a, b):
    np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b))
