"""Parameters of a state as one vector, and back."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from flax import struct

from wdjax.train import PPO, PolicyState, load_config, make_learner
from wdjax.train.state.flat import Flat, flatten_all, flatten_all_after, named_all

SMALL = {"num_envs": 2, "rollout_length": 4, "policies.agent.network.hidden_sizes": [8]}


@pytest.fixture(scope="module")
def state():
    return make_learner(load_config("cartpole_ppo", **SMALL)).init(jax.random.key(0))


def test_a_state_is_one_vector_for_each_kind_of_parameters(state):
    flat = flatten_all(state, {"agent": 4})
    own = flat.policies["agent"]
    number = sum(leaf.size for leaf in jax.tree.leaves(state.policies["agent"].params))
    number += -number % 4
    assert own.params.vector.shape == (number,)
    vectors = [leaf for leaf in jax.tree.leaves(own.opt_state) if leaf.size > 1]
    assert [leaf.shape for leaf in vectors] == 2 * [(number,)]  # mean and variance of Adam
    chex.assert_trees_all_equal(named_all(flat), state)
    again = flatten_all_after(state, flat)
    assert jax.tree.structure(again) == jax.tree.structure(flat)  # as the carry of a loop


def test_arrays_that_a_gpu_can_load_in_fours_come_first():
    tree = {
        "a": jnp.ones(3),
        "b": jnp.full((2, 4), 2.0),
        "c": jnp.float32(3.0),
        "d": jnp.full((1, 4), 4.0),
    }
    flat = Flat.of(tree, 4)
    assert flat.vector.tolist() == 8 * [2.0] + 4 * [4.0] + 3 * [1.0] + [3.0]
    assert flat.layout.firsts == [12, 0, 15, 8]
    assert Flat.of({"c": tree["c"]}, 4).vector.tolist() == [3.0, 0.0, 0.0, 0.0]
    in_order = Flat.of(tree)
    assert in_order.vector.tolist() == 3 * [1.0] + 8 * [2.0] + [3.0] + 4 * [4.0]
    chex.assert_trees_all_equal(in_order.split(), tree)
    chex.assert_trees_all_equal(flat.split(), tree)


def test_statistics_unlike_the_parameters_stay_as_they_are(state):
    own = state.policies["agent"]
    opt_state = {
        "mean": own.params,
        "half": jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), own.params),
        "steps": jax.tree.map(lambda leaf: jnp.int32(3), own.params),  # one for each leaf
        "key": jax.random.key(0),
        "none": None,
    }
    others = {"agent": own.replace(opt_state=opt_state)}
    flat = flatten_all(state.replace(policies=others), {})
    found = flat.policies["agent"].opt_state
    assert found["mean"].layout == flat.policies["agent"].params.layout
    assert {name: found[name] for name in ("half", "steps", "key", "none")} == {
        name: opt_state[name] for name in ("half", "steps", "key", "none")
    }
    back = named_all(flat).policies["agent"].opt_state
    assert jax.tree.structure(back) == jax.tree.structure(opt_state)
    chex.assert_trees_all_equal(back["mean"], own.params)


class Converted(PPO):
    """PPO whose update returns a parameter with another dtype."""

    def update(self, policy, state, *args):
        state, *rest = super().update(policy, state, *args)
        params = dict(state.params)
        params["value_head"] = {
            "kernel": params["value_head"]["kernel"].astype(jnp.bfloat16),
            "bias": params["value_head"]["bias"],
        }
        return state.replace(params=params), *rest


class Transposed(PPO):
    """PPO whose update returns a transposed matrix."""

    def update(self, policy, state, *args):
        state, *rest = super().update(policy, state, *args)
        head = {**state.params["value_head"], "kernel": state.params["value_head"]["kernel"].T}
        return state.replace(params={**state.params, "value_head": head}), *rest


def run_of(algorithm):
    own = {"policies.agent.algorithm": f"{__name__}:{algorithm}", "policies.agent.optimizer": "sgd"}
    learner = make_learner(load_config("cartpole_ppo", **SMALL, **own))
    return functools.partial(learner.run, num_updates=2), jax.eval_shape(
        learner.init, jax.random.key(0)
    )


def test_dtypes_of_a_custom_update_are_converted():
    run, state = run_of("Converted")
    assert jax.eval_shape(run, state)[0] == state


def test_shapes_of_a_custom_update_must_stay():
    run, state = run_of("Transposed")
    with pytest.raises(
        ValueError, match=r"agent: a parameter's shape = \(1, 8\): must be \(8, 1\)"
    ):
        jax.eval_shape(run, state)


class OwnState(PolicyState):
    more: int = struct.field(pytree_node=False, default=3)


def test_other_states_stay_as_they_are(state):
    own = state.policies["agent"]
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), own.params)
    others = {
        "half": own.replace(params=half),
        "own": OwnState(own.params, own.opt_state),
    }
    flat = flatten_all(state.replace(policies=others), {}).policies
    assert flat == others
    assert not any(isinstance(found.params, Flat) for found in flat.values())
