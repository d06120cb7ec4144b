"""The two-step game of the paper on QMIX: only a mixing network expresses its values.

In room A the team receives 7, in room B `ROOM_B[first, second]`. With random actions, the best sum
of two values predicts 6.5 for the best pair in room B, so VDN chooses room A.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import struct

import wdjax
from wdjax.train import evaluate, load_config, make_learner

ROOM_B = jnp.array([[0.0, 1.0], [1.0, 8.0]])
DOORS, ROOM_A, _, END = range(4)


@struct.dataclass
class State:
    room: jax.Array  # () int32


@struct.dataclass
class Params:
    pass


@dataclasses.dataclass(frozen=True)
class TwoRooms(wdjax.Env):
    """The first robot chooses a room, then both act in it. Each receives half of the reward."""

    groups = {"robot": 2}  # noqa: RUF012
    default_params = Params()

    def reset(self, key, params):
        return self.observe(jnp.int32(DOORS)), State(jnp.int32(DOORS))

    def step(self, key, state, action, params):
        first, second = action["robot"]
        paid = [state.room == ROOM_A, (state.room != DOORS) & (state.room != END)]
        reward = jnp.select(paid, [7.0, ROOM_B[first, second]], 0.0)
        room = jnp.where(state.room == DOORS, ROOM_A + first, END)
        both = lambda value: {"robot": jnp.full(2, value)}  # noqa: E731
        info = {}
        return (
            self.observe(room),
            State(room),
            both(reward / 2),
            both(room == END),
            both(False),
            info,
        )

    def observe(self, room):
        rooms = jnp.broadcast_to(jax.nn.one_hot(room, END), (2, END))
        return {"robot": jnp.concatenate([rooms, jnp.eye(2)], axis=1)}

    def observation_space(self, params):
        return wdjax.Dict({"robot": wdjax.Box(0.0, 1.0, (END + 2,)).batch(2)})

    def action_space(self, params):
        return wdjax.Dict({"robot": wdjax.Discrete(2).batch(2)})

    def global_state_space(self, params):
        return wdjax.Box(0.0, 1.0, (END,))

    def global_state(self, state, params):
        return jax.nn.one_hot(state.room, END)


@pytest.mark.slow
def test_the_environment_keeps_the_contract():
    wdjax.check_env(TwoRooms())


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize(("algorithm", "best"), [("VDN", 7), ("QMIX", 8)])
def test_only_qmix_finds_the_best_return(algorithm, best):
    policy = {
        "algorithm": algorithm, "network": {"hidden_sizes": [32], "activation": "relu"},
        "learning_rate": 1e-3, "max_grad_norm": 10.0, "epsilon": 1.0, "tau": 0.01,
        "buffer_size": 20_000, "batch_size": 64, "warmup": 500, "updates_per_rollout": 4,
    }  # fmt: skip
    run = {"num_envs": 16, "rollout_length": 4, "num_blocks": 1, "total_env_steps": 32_000}
    config = load_config({"env": f"{__name__}:TwoRooms", **run, "policies": {"robot": policy}})
    learner = make_learner(config)
    state, _ = learner.run(learner.init(jax.random.key(0)), num_updates=config.num_updates)
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=16, greedy=True)
    assert episodes.episode_return["robot"].mean() == best
