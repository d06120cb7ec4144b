"""Custom algorithms on several devices: reductions, and the check of leaves that differ."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tiny_runs import logged, small_config

from wdjax.train import A2C, FailedCheckError, Trainer, make_learner
from wdjax.train.learning import masked_mean, total

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("quick_compile", "no_pictures"),
]


class RND(A2C):
    """A2C with a bonus for novel observations: random network distillation (Burda et al., 2018)."""

    optimizer = optax.adam(1e-2)

    def init(self, policy, params):
        size = policy.assignment.observation_space.shape[0]
        networks = (nnx.Linear(size, 4, use_bias=False, rngs=nnx.Rngs(seed)) for seed in range(2))
        target, predictor = (nnx.to_pure_dict(nnx.state(network)) for network in networks)
        own = {"target": target, "predictor": predictor, "opt": self.optimizer.init(predictor)}
        return super().init(policy, params).replace(own=own)

    def update(self, policy, state, memory, hypers, played, key, num_blocks):
        rows, own = played.rows[policy.name], state.own
        project = lambda params: rows.obs @ params["kernel"]  # noqa: E731

        def errors(predictor):
            error = jnp.sum((project(predictor) - project(own["target"])) ** 2, axis=-1)
            return jnp.sum(jnp.where(rows.live, error, 0.0)), error

        grads, bonus = jax.grad(errors, has_aux=True)(own["predictor"])
        grads, metrics = self.reduce(grads, bonus, rows.live)
        updates, opt = self.optimizer.update(grads, own["opt"])
        own = own | {"predictor": optax.apply_updates(own["predictor"], updates), "opt": opt}
        played = played.replace(
            rows={**played.rows, policy.name: rows.replace(reward=rows.reward + bonus)}
        )
        state, memory, of_update = super().update(
            policy, state, memory, hypers, played, key, num_blocks
        )
        return state.replace(own=own), memory, {**of_update, **metrics}

    def reduce(self, grads, bonus, live):
        """Return (gradient, metrics), means over the valid transitions of all devices."""
        sums, count = total((grads, jnp.sum(live)))
        return jax.tree.map(lambda grad: grad / count, sums), {"bonus": masked_mean(bonus, live)}


class UnreducedRND(RND):
    def reduce(self, grads, bonus, live):
        return jax.tree.map(lambda grad: grad / jnp.sum(live), grads), {
            "bonus": masked_mean(bonus, live)
        }


class UnreducedMetric(RND):
    def reduce(self, grads, bonus, live):
        return super().reduce(grads, bonus, live)[0], {
            "bonus": jnp.sum(jnp.where(live, bonus, 0.0)) / jnp.sum(live)
        }


def rnd_config(cls=RND, **changes):
    base = {"policies.agent.algorithm": f"{__name__}:{cls.__name__}", "num_envs": 4, "devices": 2}
    policy = {
        "policies.agent.clip": 0.2,
        "policies.agent.epochs": 1,
        "policies.agent.minibatches": 1,
    }
    # evaluations take long
    return small_config(total_env_steps=3 * 64, best_metric="none", **(base | policy | changes))


def test_a_custom_algorithm_that_reduces_over_devices_learns_as_on_one(tmp_path):
    learner = make_learner(rnd_config(devices=1))
    one, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=3)
    two = Trainer(rnd_config(), tmp_path / "run", quiet=True).train()
    assert int(two.num_updates) == 3
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, one.policies["agent"].own, two.policies["agent"].own)
    close(metrics["agent/bonus"], [row["agent/bonus"] for row in logged(tmp_path / "run")])


@pytest.mark.parametrize(
    ("cls", "debug", "words"),
    [
        (
            UnreducedRND,
            False,
            r"^policies\.agent\.own\.opt.*after 1 updates.*"
            r"`average` of wdjax.train.learning.*--devices 1",
        ),
        (UnreducedMetric, True, "^agent/bonus: must be equal on all devices"),
    ],
)
def test_leaves_that_differ_between_devices_end_the_run_by_name(cls, debug, words, tmp_path):
    with pytest.raises(FailedCheckError, match=words):
        Trainer(rnd_config(cls), tmp_path / "run", quiet=True, debug=debug).train()
    assert not any(path.name.isdigit() for path in (tmp_path / "run" / "checkpoints").iterdir())
