"""Networks of values: critics of observations, states, or observations and actions."""

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.spaces import Space
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks.actor_critic import MLP, _initializer
from wdjax.train.networks.encoders import make_encoder
from wdjax.train.networks.linear import product


class ValueNetwork(nnx.Module):
    """An encoder, hidden layers and a linear head: V(obs), Q(obs, action), or Q of all actions.

    Args:
        space: of one observation without its action mask, or of the global state.
        config: sizes, activation and initializer; `recurrent_size` and `head_hidden_sizes` are
            ignored.
        num_actions: numbers of a continuous action, a second input; 0: none.
        num_values: values per input, [..., num_values], such as one per discrete action; None:
            one, [...].
        kernel_init: initializer of the head; None: the one in `config`.
        rngs: random streams of flax.
    """

    def __init__(
        self,
        space: Space,
        config: NetworkConfig,
        *,
        num_actions: int = 0,
        num_values: int | None = None,
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        self.encoder = make_encoder(space, config, rngs)
        self.mlp = MLP(self.encoder.num_features + num_actions, config, rngs=rngs)
        self.single = num_values is None
        self.head = nnx.Linear(
            self.mlp.num_features,
            num_values or 1,
            kernel_init=kernel_init or _initializer(config, 1.0),
            dot_general=product,
            rngs=rngs,
        )

    def __call__(self, obs: chex.ArrayTree, action: jax.Array | None = None) -> jax.Array:
        """Return values [...] or [..., num_values].

        Args:
            obs: leaves [..., *part].
            action: [..., num_actions], if the network has this input.
        """
        features = self.encoder(obs)
        if action is not None:
            features = jnp.concatenate([features, action], axis=-1)
        values = self.head(self.mlp(features))
        return values[..., 0] if self.single else values
