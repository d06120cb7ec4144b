"""Classic control with the dynamics, names and defaults of gymnasium, in float32."""

from wdjax.envs.classic_control.acrobot import Acrobot
from wdjax.envs.classic_control.cartpole import CartPole
from wdjax.envs.classic_control.continuous_mountain_car import ContinuousMountainCar
from wdjax.envs.classic_control.mountain_car import MountainCar
from wdjax.envs.classic_control.pendulum import Pendulum

__all__ = ["Acrobot", "CartPole", "ContinuousMountainCar", "MountainCar", "Pendulum"]
