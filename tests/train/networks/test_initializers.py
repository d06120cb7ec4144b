"""The orthogonal initializer: the numbers of flax, without batched decompositions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from wdjax.train import NetworkConfig, PolicyConfig, TrainConfig, make_learner
from wdjax.train.networks.linear import orthogonal

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (1, 3)])
def test_orthogonal_agrees_with_flax(shape):
    keys = jax.random.split(jax.random.key(0), 3)
    alone = [nnx.initializers.orthogonal(2.0)(key, shape, jnp.float32) for key in keys]
    np.testing.assert_array_equal([orthogonal(2.0)(key, shape) for key in keys], alone)
    np.testing.assert_array_equal(
        jax.vmap(functools.partial(orthogonal(2.0), shape=shape))(keys), alone
    )


def decomposed(jaxpr):
    """Return the number of axes of every decomposed matrix in a program, recursively."""
    axes = [
        equation.invars[0].aval.ndim
        for equation in jaxpr.eqns
        if equation.primitive.name in ("geqrf", "geqp3", "qr")
    ]
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            axes += decomposed(inner) if hasattr(inner, "eqns") else []
    return axes


@pytest.mark.parametrize("encoder", ["flat", "deep_sets"])
def test_population_decomposes_one_matrix_at_a_time(encoder):
    """Batched decompositions hang on a CPU with two cores (jaxlib 0.10.2)."""
    network = NetworkConfig(hidden_sizes=(4, 4), recurrent_size=3, encoder=encoder)
    policies = {name: PolicyConfig(network=network) for name in ("tagger", "runner")}
    env_params = {
        "num_taggers": 2,
        "num_runners": 2,
        "use_full_observation": False,
        "num_other_agents_observed": 2,
    }
    learner = make_learner(
        TrainConfig("tag_continuous", policies, env_params=env_params, num_envs=2, rollout_length=2)
    )
    program = jax.make_jaxpr(jax.vmap(learner.init))(jax.random.split(jax.random.key(0), 3))
    axes = decomposed(program.jaxpr)
    assert len(axes) >= 2 * 5
    assert set(axes) == {2}
