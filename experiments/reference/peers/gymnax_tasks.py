"""Rows of games of gymnax: purejaxql and PureJaxRL."""

from collections.abc import Mapping
from typing import Any

from wdjax.experiments.reference.peers.parts import (
    EPISODES,
    GREEDY_RETURN,
    NETWORK,
    ONE_DONE,
    ONE_DONE_INSIDE,
    PPO,
    PQN,
    TRAINING_RETURN,
    Programs,
    epsilon,
    preset,
    to_zero,
)
from wdjax.experiments.reference.peers.programs import (
    Ours,
    Task,
    Theirs,
)

PQN_CARTPOLE = PQN | {
    "network": NETWORK | {"hidden_sizes": [256, 256], "activation": "relu", "layer_norm": True},
    "gamma": 0.99, "q_lambda": 0.95, "reward_scale": 0.1, "epsilon": epsilon(0.2, 0.2),
    "learning_rate": to_zero(1e-4), "max_grad_norm": 10.0,
}  # fmt: skip
PQN_MINATAR = PQN | {
    "network": NETWORK | {
        "hidden_sizes": [128], "activation": "relu", "layer_norm": True, "encoder": "cnn",
        "encoder_options": {"channels": [16], "kernel_size": 3, "stride": 1, "padding": "valid",
                            "layer_norm": True, "scale": 1 / 255, "initializer": "he"},
    },
    "gamma": 0.99, "q_lambda": 0.65, "epochs": 2, "minibatches": 32,
    "epsilon": epsilon(0.05, 0.1), "learning_rate": to_zero(5e-4), "max_grad_norm": 10.0,
}  # fmt: skip
PPO_MINATAR_CONFIG = {
    "LR": 5e-3, "NUM_ENVS": 64, "NUM_STEPS": 128, "UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 8,
    "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5, "ACTIVATION": "relu", "ANNEAL_LR": True, "DEBUG": False,
}  # fmt: skip


def gymnax(env: str, num_envs: int, steps: int, policy: Mapping[str, Any]) -> Ours:
    """Return a program on an environment of gymnax."""
    return Ours(preset(f"gymnax:{env}", num_envs, steps, {"agent": policy}), ("agent",))


def minatar_ppo(game: str, shared_trunk: bool) -> Ours:
    """Return PPO on a game of MinAtar."""
    net = {"hidden_sizes": [64, 64], "activation": "relu", "shared_trunk": shared_trunk}
    policy = PPO | {"network": NETWORK | net, "learning_rate": to_zero(5e-3), "minibatches": 8}
    return gymnax(game, 64, 128, policy)


def minatar_tasks(game: str) -> dict[str, Task]:
    """Return the rows of PQN and PPO on a game of MinAtar."""
    env = f"{game}-MinAtar"
    scripts = {
        "pqn": Theirs("purejaxql", "purejaxql/pqn_minatar.py",
            "purejaxql/config/alg/pqn_minatar.yaml", {"ENV_NAME": env},
            (ONE_DONE, EPISODES)),
        "ppo": Theirs("purejaxrl", "purejaxrl/ppo.py", PPO_MINATAR_CONFIG, {"ENV_NAME": env},
            (ONE_DONE_INSIDE,), config_from="examples/brax_minatar.ipynb"),
    }  # fmt: skip
    pqn: Programs = {
        "wdjax PQN": gymnax(env, 128, 32, PQN_MINATAR),
        "purejaxql PQN": scripts["pqn"],
    }
    ppo: Programs = {
        "wdjax PPO": minatar_ppo(env, False),
        "wdjax PPO, shared trunk": minatar_ppo(env, True),
        "PureJaxRL PPO": scripts["ppo"],
    }
    title, steps = f"MinAtar {game}", 10_000_000
    name = f"minatar_{game.lower()}"
    return {
        f"{name}_pqn": Task(title, "PQN", steps, pqn, (TRAINING_RETURN, GREEDY_RETURN)),
        f"{name}_ppo": Task(title, "PPO", steps, ppo, (TRAINING_RETURN,)),
    }


TASKS = {
    "cartpole_pqn": Task(
        "CartPole", "PQN", 500_000,
        {
            "wdjax PQN": gymnax("CartPole-v1", 32, 64, PQN_CARTPOLE),
            "purejaxql PQN": Theirs("purejaxql", "purejaxql/pqn_gymnax.py",
                "purejaxql/config/alg/pqn_cartpole.yaml",
                edits=(ONE_DONE, EPISODES)),
        },
        (TRAINING_RETURN, GREEDY_RETURN),
    ),
    **minatar_tasks("Breakout"),
    **minatar_tasks("Asterix"),
}  # fmt: skip
