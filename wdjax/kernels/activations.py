"""Activations inside kernels, by their names in `network.activation`."""

import jax
import jax.numpy as jnp

# a run may replace those in train/networks/actor_critic.py
ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
# act'(x) as a function of act(x)
SLOPES = {"relu": lambda h: (h > 0).astype(h.dtype), "tanh": lambda h: 1.0 - h * h}
