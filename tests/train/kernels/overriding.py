"""Custom parts of a policy and of an environment, each trained with and without kernels.

Ten functions that users may override, each with a clear effect on learning. Tests train them with
interpreted kernels. This command trains them on a card:

    PYTHONPATH=. python tests/train/kernels/overriding.py
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from wdjax.envs.classic_control.cartpole import CartPole
from wdjax.train import PPO, Learner, load_config, make_learner
from wdjax.train.learning import ActorCritic, Categorical, FlatEncoder, Policy
from wdjax.train.networks.actor_critic import ACTIVATIONS, without_mask

UPDATES = 3
PARAMETERS = 0.05  # relative to the change of an array in training: rounding changes some actions

# SGD, as Adam amplifies small gradients; many replicas, so that a differing one has little effect
AGENT = {
    "optimizer": "sgd", "learning_rate": 0.03, "epochs": 2, "minibatches": 2,
    "network.hidden_sizes": [16],
    "entropy_coefficient": 0.05,
}  # fmt: skip
SIZE = {
    "num_envs": 512, "num_blocks": 4, "rollout_length": 16, "devices": 1,
    "env_params.episode_length": 12,
    **{f"policies.agent.{field}": value for field, value in AGENT.items()},
}  # fmt: skip


def see(obs: jax.Array) -> jax.Array:
    """Return observations changed in a way that no built-in function does."""
    return 3.0 * jnp.abs(obs) + 0.5


class Network(ActorCritic):
    """The built-in network with the same parameters and changed observations."""

    def __call__(self, obs: Any, carry: Any = None) -> tuple[jax.Array, jax.Array, Any]:
        return super().__call__(see(obs), carry)


class Encoder(FlatEncoder):
    """The built-in encoder with changed observations."""

    def __call__(self, obs: Any) -> jax.Array:
        return super().__call__(see(obs))


class Sharp(Categorical):
    """Tripled logits, with the first one raised."""

    def _logits(self, outputs: jax.Array) -> jax.Array:
        logits = 3.0 * super()._logits(outputs)
        first = jnp.arange(logits.shape[-1]).reshape((1,) * (logits.ndim - 1) + (-1,)) == 0
        return logits + jnp.where(first, 0.5, 0.0)


class OwnNetwork(PPO):
    """PPO with `Network`."""

    def make_network(
        self, context: Any, config: Any, assignment: Any, rngs: nnx.Rngs
    ) -> ActorCritic:
        space, distribution = (
            assignment.observation_space,
            self.make_distribution(config, assignment),
        )
        return Network(without_mask(space), distribution, config.network, rngs=rngs)


class OwnDistribution(PPO):
    """PPO with `Sharp`."""

    def make_distribution(self, config: Any, assignment: Any) -> Sharp:
        return Sharp((assignment.action_space.n,), scalar=True)


class OwnLoss(PPO):
    """PPO that learns only from actions that were better than expected."""

    def loss(self, new: Any, batch: Any, options: Any, mean: Callable) -> tuple:
        better = {**vars(batch), "advantage": jnp.maximum(batch.advantage, 0.0)}
        seen: Any = types.SimpleNamespace(**better)
        return super().loss(new, seen, options, mean)


class OwnAdvantages(PPO):
    """PPO whose advantages ignore later rewards."""

    def advantages(self, policy: Any, state: Any, data: Any, next_value: jax.Array) -> tuple:
        return data.reward - 0.5 * data.rows.value, data.reward


class OwnActing(PPO):
    """PPO that acts to the right more often than its policy."""

    def act(
        self, policy: Policy, state: Any, carry: Any, obs: Any, keys: jax.Array, hypers: Any
    ) -> tuple:
        action, notes, carry = super().act(policy, state, carry, obs, keys, hypers)
        return jnp.where(obs[..., 2] > 0.0, 1, action), notes, carry


class OwnStep(CartPole):
    """CartPole with a penalty for a tilted pole."""

    def step(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> tuple:
        obs, state, reward, *flags = super().step(key, state, action, params)
        return obs, state, reward - 20.0 * jnp.abs(obs[2]), *flags


class OwnReset(CartPole):
    """CartPole that starts with a velocity to the right."""

    def reset(self, key: jax.Array, params: Any) -> tuple:
        state = super().reset(key, params)[1]
        state = state.replace(x_dot=state.x_dot + 1.0)
        return self.observe(state, params), state


def apply_to_seen(policy: Policy, state: Any, obs: Any, carry: Any = None) -> tuple:
    """Replace `Policy.apply`: the network gets changed observations, without normalization."""
    outputs, value, carry = nnx.merge(policy.graphdef, state.params)(see(obs), carry)
    return outputs, value, carry


def class_path(cls: type) -> str:
    """Return the path of a class of this file in a configuration."""
    return f"{__name__}:{cls.__name__}"


NOTHING = contextlib.nullcontext
# name -> (changes of cartpole_ppo, context manager that patches a function)
OVERRIDES: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "network": ({"policies.agent.algorithm": class_path(OwnNetwork)}, NOTHING),
    "encoder": ({"policies.agent.network.encoder": class_path(Encoder)}, NOTHING),
    "distribution": ({"policies.agent.algorithm": class_path(OwnDistribution)}, NOTHING),
    "activation": ({}, lambda: mock.patch.dict(ACTIVATIONS, tanh=jnp.cos)),
    "policy_loss": ({"policies.agent.algorithm": class_path(OwnLoss)}, NOTHING),
    "advantages": ({"policies.agent.algorithm": class_path(OwnAdvantages)}, NOTHING),
    "act": ({"policies.agent.algorithm": class_path(OwnActing)}, NOTHING),
    "apply": ({}, lambda: mock.patch.object(Policy, "apply", apply_to_seen)),
    "step": ({"env": class_path(OwnStep)}, NOTHING),
    "reset": ({"env": class_path(OwnReset)}, NOTHING),
}  # fmt: skip


@contextlib.contextmanager
def overriding(*names: str, **changes: Any) -> Iterator[Learner]:
    """Yield the learner of a small run with overrides."""
    with contextlib.ExitStack() as patches:
        for name in names:
            own, patch = OVERRIDES[name]
            if repeated := own.keys() & changes.keys():
                raise ValueError(f"two overrides change {', '.join(repeated)}")
            changes |= own
            patches.enter_context(patch())
        yield make_learner(load_config("cartpole_ppo", **{**SIZE, **changes}))


def train(*names: str, **changes: Any) -> tuple[Any, Any]:
    """Return the parameters after UPDATES updates, and the initial ones."""
    with overriding(*names, **changes) as learner:
        start = learner.init(jax.random.key(0))
        last, _ = learner.run(start, num_updates=UPDATES)
    return jax.device_get((last.policies["agent"].params, start.policies["agent"].params))


@functools.cache
def built_in() -> Any:
    """Return the parameters of training without overrides and kernels."""
    return train(kernels=False)[0]


def compare_override(*names: str) -> str:
    """Train overrides with and without kernels. Return the distance of their parameters as text.

    Raises:
        RuntimeError: if it exceeds PARAMETERS, or a quarter of the effect of the
            overrides.
    """
    (by_kernels, _), plain = train(*names), train(*names, kernels=False)
    apart, effect = (parameter_distance(params, *plain) for params in (by_kernels, built_in()))
    text = f"{apart:.1e} from plain XLA, which differs by {effect:.1e} from the built-in function"
    if not apart <= PARAMETERS <= effect / 4:
        raise RuntimeError(text)
    return text


def parameter_distance(found: Any, expected: Any, start: Any) -> float:
    """Return max over arrays of |found - expected| / |expected - start| for trained parameters."""
    norm = lambda a, b: np.linalg.norm(np.float64(a) - np.float64(b))  # noqa: E731
    apart = jax.tree.map(lambda a, b, first: norm(a, b) / norm(b, first), found, expected, start)
    return max(jax.tree.leaves(apart))


if __name__ == "__main__":
    for name in OVERRIDES:
        print(f"{name}: {compare_override(name)}", flush=True)
