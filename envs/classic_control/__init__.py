"""Classic control: gymnasium's dynamics, names and defaults, in float32."""

from wdjax.envs.classic_control.cartpole import CartPole

__all__ = ["CartPole"]
