"""The comparison rows: configurations of wdjax, and scripts of other authors.

wdjax uses the hyperparameters of the other program. Its value losses have a factor 0.5, so
`value_coefficient` is half as large here. JaxMARL's PQN-VDN has no factor 0.5 in its loss, so its
`max_grad_norm` is half as large here.
"""

from collections.abc import Mapping
from typing import Any

from wdjax.experiments.reference.peers.programs import (
    GREEDY,
    RETURN,
    SAMPLED,
    TRAINING,
    WON,
    Ours,
    Published,
    Task,
    Theirs,
)

Programs = dict[str, Ours | Theirs | Published]
# commits of the checkouts
COMMITS = {"JaxMARL": "c793d09", "purejaxql": "47af6d7", "purejaxrl": "31756b1"}
URLS = {
    "JaxMARL": "https://github.com/FLAIROx/JaxMARL",
    "purejaxql": "https://github.com/mttga/purejaxql",
    "purejaxrl": "https://github.com/luchris429/purejaxrl",
}
# no call of wandb, and metrics of every seed in the result
SILENT = ("jax.experimental.io_callback(callback, None, metric)", "None")
REPORTS = (
    'return {"runner_state": runner_state}',
    'return {"runner_state": runner_state, "metrics": metric}',
)
METRICS = ("return runner_state, None", "return runner_state, metrics")
BY_AGENT = (
    "metric = jax.tree.map(lambda x: x.mean(), metric)",
    "metric = jax.tree.map(lambda x: x.reshape(-1, env.num_agents).mean(0), metric)",
)
EPISODES = (  # of every step, so that the ended episodes are known
    "metrics.update({k: v.mean() for k, v in infos.items()})",
    "metrics.update(infos)",
)
PADDED = (
    ("pad(x[a]) for", "pad(x[a], max_dim) for"),
    ("z.shape[:-1] + [length - z.shape[-1]]", "(*z.shape[:-1], length - z.shape[-1])"),
)
# `done` of gymnax 1.0 as of older versions
ONE_DONE = ("LogWrapper(env)", "LogWrapper(env)\n    env.step = with_one_done(env.step)")
ONE_DONE_INSIDE = (
    'gymnax.make(config["ENV_NAME"])',
    'gymnax.make(config["ENV_NAME"])\n    env.step = with_one_done(env.step)',
)


def to_zero(learning_rate: float) -> dict[str, Any]:
    """Return a linear schedule from a learning rate to 0."""
    return {"fraction": [[0, learning_rate], [1, 0.0]]}


def epsilon(last: float, fraction: float) -> dict[str, Any]:
    """Return a linear schedule from 1 to `last` over a fraction of the run."""
    return {"fraction": [[0, 1.0], [fraction, last]]}


NETWORK = {"layer_norm": False, "recurrent_size": 0, "head_hidden_sizes": [], "encoder": "flat",
           "initializer": "orthogonal", "shared_trunk": True}  # fmt: skip
PPO = {
    "algorithm": "PPO", "gamma": 0.99, "gae_lambda": 0.95, "epochs": 4, "minibatches": 4,
    "clip": 0.2, "value_clip": 0.2, "value_coefficient": 0.25, "entropy_coefficient": 0.01,
    "normalize_advantage": True, "max_grad_norm": 0.5, "optimizer": "adam",
    "optimizer_epsilon": 1e-5,
}  # fmt: skip
PQN = {
    "algorithm": "PQN", "optimizer": "radam", "optimizer_epsilon": 1e-8, "epochs": 4,
    "minibatches": 16, "reward_scale": 1.0, "mixer": "none", "normalize_observation": False,
}  # fmt: skip
RNN = NETWORK | {"hidden_sizes": [128], "recurrent_size": 128, "head_hidden_sizes": [128]}


def preset(
    env: str,
    num_envs: int,
    rollout_length: int,
    policies: Mapping[str, Any],
    env_params: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a preset."""
    return {
        "env": env, "env_params": dict(env_params or {}), "num_envs": num_envs,
        "rollout_length": rollout_length, "policies": dict(policies),
    }  # fmt: skip


# MPE


def mpe(env: str, policies: Mapping[str, Any], num_envs: int = 16, steps: int = 128) -> Ours:
    """Return a program on an MPE environment that measures its first policy."""
    return Ours(preset(f"jaxmarl:{env}", num_envs, steps, policies), (next(iter(policies)),))


def ippo_mpe(shared_trunk: bool) -> dict[str, Any]:
    """Return PPO for MPE."""
    net = {"hidden_sizes": [64, 64], "activation": "tanh", "shared_trunk": shared_trunk}
    return PPO | {"network": NETWORK | net, "learning_rate": to_zero(2.5e-4)}


SPREAD, TAG = "MPE_simple_spread_v3", "MPE_simple_tag_v3"
MAPPO = {"algorithm": "MAPPO", "critic_observes": True, "normalize_value": False}
MAPPO_NOTE = (
    "The critic of wdjax sees the global state, the observation of the agent and its number, "
    "JaxMARL's the global state and, in SMAX, the number."
)
# JaxMARL's script ignores ACTIVATION: tanh of its configuration
MAPPO_MPE = PPO | MAPPO | {"network": RNN | {"activation": "relu"},
                           "learning_rate": to_zero(2e-3)}  # fmt: skip
MAPPO_TAG = ippo_mpe(False) | MAPPO
PQN_MPE = PQN | {
    "agents": ["agent[*]"], "agent_type_feature": True,
    "network": NETWORK | {"hidden_sizes": [256, 256], "activation": "relu", "layer_norm": True},
    "mixer": "sum", "gamma": 0.9, "q_lambda": 0.3, "epsilon": epsilon(0.1, 0.1),
    "learning_rate": 5e-4, "max_grad_norm": 0.5,
}  # fmt: skip
IPPO_MPE_SCRIPT = "baselines/IPPO/ippo_ff_mpe.py"
IPPO_MPE_CONFIG = "baselines/IPPO/config/ippo_ff_mpe.yaml"
QL = "baselines/QLearning"
TRAINING_RETURN = (RETURN, TRAINING, TRAINING)
GREEDY_RETURN = (RETURN, GREEDY, GREEDY)
SPEAKER = "MPE_simple_speaker_listener_v4"
REPLAY = {
    "gamma": 0.9, "epsilon": epsilon(0.05, 0.3), "tau": 0.01, "buffer_size": 100_000,
    "batch_size": 128, "warmup": 2_000, "updates_per_rollout": 16,
}  # fmt: skip


def speaker_listener(
    algorithm: str,
    replay: Mapping[str, Any] = REPLAY,
    policy: Mapping[str, Any] = {"learning_rate": to_zero(1e-3), "max_grad_norm": 10.0},
    num_envs: int = 16,
    steps: int = 8,
) -> Ours:
    """Return a program in which speaker and listener learn as a team, or alone by DQN."""
    network = NETWORK | {"hidden_sizes": [64, 64], "activation": "relu"}
    policy, names = {"network": network, **policy}, ("speaker", "listener")
    alone = {"algorithm": "DQN", **replay} if algorithm == "DQN" else {}
    program = preset(f"jaxmarl:{SPEAKER}", num_envs, steps, dict.fromkeys(names, policy | alone))
    if not alone:
        program["teams"] = {"pair": {"policies": list(names), "algorithm": algorithm, **replay}}
    return Ours(program, names)


VDN_MPE = REPLAY | {"epsilon": epsilon(0.05, 0.1), "tau": 1 / 200, "batch_size": 32,
                    "warmup": 10_000, "updates_per_rollout": 1}  # fmt: skip
VDN_MPE_POLICY = {"learning_rate": to_zero(5e-3), "max_grad_norm": 12.5, "optimizer": "radam",
                  "optimizer_epsilon": 1e-8}  # fmt: skip
MPE_TASKS = {
    "mpe_spread_ippo": Task(
        "MPE simple_spread", "IPPO", 10_000_000,
        {
            "wdjax PPO": mpe(SPREAD, {"agent": ippo_mpe(False)}),
            "wdjax PPO, shared trunk": mpe(SPREAD, {"agent": ippo_mpe(True)}),
            "JaxMARL IPPO": Theirs("JaxMARL", IPPO_MPE_SCRIPT, IPPO_MPE_CONFIG, edits=(SILENT,)),
        },
        (TRAINING_RETURN,),
    ),
    "mpe_spread_mappo": Task(
        "MPE simple_spread", "MAPPO, recurrent", 2_000_000,
        {
            "wdjax MAPPO": mpe(SPREAD, {"agent": MAPPO_MPE}),
            "JaxMARL MAPPO": Theirs("JaxMARL", "baselines/MAPPO/mappo_rnn_mpe.py",
                "baselines/MAPPO/config/mappo_homogenous_rnn_mpe.yaml", edits=(SILENT, REPORTS)),
        },
        (TRAINING_RETURN,),
        note=MAPPO_NOTE,
    ),
    "mpe_tag_ippo": Task(
        "MPE simple_tag, return of the three predators", "IPPO and MAPPO", 10_000_000,
        {
            "wdjax PPO": mpe(TAG, {"adversary": ippo_mpe(False), "agent": ippo_mpe(False)}),
            "wdjax MAPPO predators": mpe(TAG,
                {"adversary": MAPPO_TAG, "agent": ippo_mpe(False)}),
            "JaxMARL IPPO": Theirs("JaxMARL", IPPO_MPE_SCRIPT, IPPO_MPE_CONFIG, {"ENV_NAME": TAG},
                (SILENT, BY_AGENT, *PADDED), agents=3, factor=3 / 4),
        },
        (TRAINING_RETURN,),
        note="Predators play against the prey of their own program, so their returns do not rank "
        "the programs. JaxMARL's script trains one policy for predators and prey, wdjax trains "
        "two. The script raises an error where observations differ in length; its padding is "
        "repaired here.",
    ),
    "mpe_spread_pqn_vdn": Task(
        "MPE simple_spread", "PQN-VDN", 10_000_000,
        {
            "wdjax PQN-VDN": mpe(SPREAD, {"agent": PQN_MPE}, 256, 16),
            "JaxMARL PQN-VDN": Theirs("JaxMARL", f"{QL}/pqn_vdn_ff.py",
                f"{QL}/config/alg/pqn_vdn_ff_mpe.yaml",
                edits=(METRICS,)),
        },
        (TRAINING_RETURN, GREEDY_RETURN),
    ),
    "mpe_speaker_listener_vdn": Task(
        "MPE simple_speaker_listener", "VDN over two policies", 500_000,
        {
            **{f"wdjax {name}": speaker_listener(name) for name in ("VDN", "QMIX", "DQN")},
            "wdjax VDN, numbers of JaxMARL": speaker_listener(
                "VDN", VDN_MPE, VDN_MPE_POLICY, 32, 16),
            "JaxMARL VDN": Theirs("JaxMARL", f"{QL}/vdn_ff.py", f"{QL}/config/alg/vdn_ff_mpe.yaml",
                {"ENV_NAME": SPEAKER}, (METRICS,)),
        },
        (GREEDY_RETURN,),
        note="DQN learns speaker and listener alone. JaxMARL's script has one network for both "
        "agents, and its configuration was made for simple_spread: one gradient step of 32 "
        "transitions for 512 env steps. The first three programs make one of 128 transitions for "
        "eight env steps. The fourth has the numbers of JaxMARL, but two networks, and a target "
        "network that follows slowly.",
    ),
}  # fmt: skip

# SMAX

SMAX = {"see_enemy_actions": True, "walls_cause_death": True, "attack_mode": "closest"}
BATTLE = RNN | {"activation": "relu"}
IPPO_SMAX = PPO | {"network": BATTLE, "clip": 0.05, "value_clip": 0.05,
                   "learning_rate": to_zero(4e-3),
                   "max_grad_norm": 0.25}  # fmt: skip
MAPPO_SMAX = PPO | MAPPO | {"network": BATTLE, "entropy_coefficient": 0.0,
                            "learning_rate": to_zero(2e-3), "max_grad_norm": 0.25}  # fmt: skip
PQN_SMAX = PQN | {
    "agents": ["ally[*]"], "agent_type_feature": True, "normalize_observation": True,
    "network": NETWORK | {"hidden_sizes": [512, 512], "recurrent_size": 512, "layer_norm": True,
                          "activation": "relu"},
    "mixer": "sum", "gamma": 0.99, "q_lambda": 0.85, "epsilon": epsilon(0.01, 0.1),
    "learning_rate": to_zero(2.5e-4), "max_grad_norm": 0.5,
}  # fmt: skip
SAMPLED_WON, GREEDY_WON = (WON, SAMPLED, TRAINING), (WON, GREEDY, GREEDY)
SHARED_REWARD = 10.0  # factor of the reward in JaxMARL's PQN-VDN, for one agent's reward


def smax(scenario: str, policy: Mapping[str, Any]) -> Ours:
    """Return a program on a scenario of SMAX."""
    params = {"scenario": scenario, "credit": "team", **SMAX}
    env = preset("jaxmarl:HeuristicEnemySMAX", 128, 128, {"ally": policy}, params)
    return Ours(env, ("ally",), won_above=1.5)  # 1 for all damage, 1 for winning


def smax_ppo(scenario: str, algorithm: str, env_steps: int, seeds: int = 10) -> Task:
    """Return the row of a recurrent IPPO or MAPPO on a scenario of SMAX."""
    policy = {"IPPO": IPPO_SMAX, "MAPPO": MAPPO_SMAX}[algorithm]
    folder, prefix = f"baselines/{algorithm}", {"IPPO": "ippo", "MAPPO": "mappo_homogenous"}
    theirs = Theirs("JaxMARL", f"{folder}/{algorithm.lower()}_rnn_smax.py",
        f"{folder}/config/{prefix[algorithm]}_rnn_smax.yaml", {"MAP_NAME": scenario},
        (SILENT, REPORTS))  # fmt: skip
    ours = smax(scenario, policy)
    programs: Programs = {f"wdjax {algorithm.removeprefix('I')}": ours}
    programs |= {f"JaxMARL {algorithm}": theirs}
    title, note = f"{algorithm}, recurrent", MAPPO_NOTE if algorithm == "MAPPO" else ""
    return Task(f"SMAX {scenario}", title, env_steps, programs, (SAMPLED_WON,), seeds, note)


def smax_pqn(scenario: str, agents: int, env_steps: int, seeds: int = 10) -> Task:
    """Return the row of a recurrent PQN-VDN on a scenario of SMAX."""
    policy = PQN_SMAX | {"reward_scale": SHARED_REWARD / agents}
    theirs = Theirs("JaxMARL", f"{QL}/pqn_vdn_rnn.py", f"{QL}/config/alg/pqn_vdn_rnn_smax.yaml",
        {"MAP_NAME": scenario})  # fmt: skip
    programs: Programs = {"wdjax PQN-VDN": smax(scenario, policy), "JaxMARL PQN-VDN": theirs}
    note = (
        "JaxMARL normalizes observations and layers over the batch; wdjax normalizes "
        "observations by running statistics and layers by layer normalization."
    )
    title = "PQN-VDN, recurrent"
    return Task(f"SMAX {scenario}", title, env_steps, programs, (GREEDY_WON,), seeds, note)


SMAX_TASKS = {
    "smax_2s3z_ippo": smax_ppo("2s3z", "IPPO", 2_000_000),
    "smax_2s3z_mappo": smax_ppo("2s3z", "MAPPO", 2_000_000),
    "smax_2s3z_pqn_vdn": smax_pqn("2s3z", 5, 2_000_000),
    "smacv2_5_mappo": smax_ppo("smacv2_5_units", "MAPPO", 10_000_000, seeds=5),
    "smacv2_10_mappo": smax_ppo("smacv2_10_units", "MAPPO", 10_000_000, seeds=5),
    "smacv2_5_pqn_vdn": smax_pqn("smacv2_5_units", 5, 5_000_000, seeds=5),
}

# Overcooked

# JaxMARL adds the shaped rewards of both agents to the reward of one agent. Here both receive it,
# so the sum is halved and shaped rewards have twice the weight.
PQN_OVERCOOKED = PQN | {
    "network": NETWORK | {
        "hidden_sizes": [512, 512], "activation": "relu", "layer_norm": True, "encoder": "cnn",
        "initializer": "lecun",
        "encoder_options": {"channels": [32, 32, 32], "kernel_size": [5, 3, 3], "stride": 1,
                            "padding": "same", "layer_norm": True, "initializer": "lecun"},
    },
    "mixer": "sum", "gamma": 0.99, "q_lambda": 0.5, "epsilon": epsilon(0.2, 0.2),
    "learning_rate": to_zero(7.5e-5), "max_grad_norm": 5.0, "reward_scale": 0.5,
}  # fmt: skip
SHAPING = {"env_schedules": {"shaped_reward": {"fraction": [[0, 2.0], [0.5, 0.0]]}}}
KITCHEN = preset("jaxmarl:overcooked", 64, 16, {"agent": PQN_OVERCOOKED},
                 {"layout": "counter_circuit"})  # fmt: skip
OVERCOOKED_TASKS = {
    "overcooked_pqn_vdn": Task(
        "Overcooked counter_circuit", "PQN-VDN", 5_000_000,
        {
            "wdjax PQN-VDN": Ours(KITCHEN | SHAPING, ("agent",)),
            "JaxMARL PQN-VDN": Theirs("JaxMARL", f"{QL}/pqn_vdn_cnn_overcooked.py",
                f"{QL}/config/alg/pqn_vdn_cnn_overcooked.yaml", factor=2.0),
        },
        (TRAINING_RETURN, GREEDY_RETURN),
        note="Both agents receive 20 for a delivered soup, so the return is 40 for each. Shaped "
        "rewards have the weight 0 after half of the run.",
    ),
}  # fmt: skip

# Jumanji

MAVA = "https://github.com/instadeepai/Mava"
MAVA_PPO = PPO | MAPPO | {"agents": ["agent[*]"], "agent_type_feature": True, "minibatches": 8,
                  "learning_rate": 2.5e-4}  # fmt: skip
FEED_FORWARD = NETWORK | {"hidden_sizes": [128, 128], "activation": "relu", "shared_trunk": False}
WAREHOUSE = {
    "column_height": 8, "shelf_rows": 1, "shelf_columns": 3, "num_agents": 4, "sensor_range": 1,
    "request_queue_size": 4, "time_limit": 500, "fields": ["agents_view"],
}  # fmt: skip
FORAGING = {
    "grid_size": 8, "fov": 2, "num_agents": 2, "num_food": 2, "max_agent_level": 2,
    "force_coop": True, "time_limit": 100, "fields": ["agents_view"],
}  # fmt: skip
LARGE_BATCH = (
    "wdjax has 256 replicas, rollouts of 64 steps and eight minibatches, Mava's "
    "configuration 32, 128 and two: the number and the size of the gradient steps are the same."
)


def jumanji(game: str, params: Mapping[str, Any], policy: Mapping[str, Any]) -> Ours:
    """Return a program on a game of Jumanji."""
    return Ours(preset(f"jumanji:{game}", 256, 64, {"agent": policy}, params), ("agent",))


def mava_chart(path: str, score: str) -> Published:
    """Return a result that is read from the end of a chart in Mava's documentation."""
    return Published(score, f"[chart of Mava]({MAVA}/blob/57c8e64/docs/images/{path}.png).")


SAMPLED_RETURN = (RETURN, SAMPLED, SAMPLED)
JUMANJI_TASKS = {
    "rware_mappo": Task(
        "RobotWarehouse tiny-4ag", "MAPPO", 20_000_000,
        {
            "wdjax MAPPO": jumanji("RobotWarehouse-v0", WAREHOUSE,
                MAVA_PPO | {"network": FEED_FORWARD}),
            "Mava MAPPO": mava_chart("rware_results/ff_mappo/tiny-4ag", "96 [86, 106]"),
        },
        (SAMPLED_RETURN,),
        note="Each of the four agents receives 1 for a delivered shelf. The chart shows the number "
        f"of shelves, 24 [21.5, 26.5], the table four times as much. {LARGE_BATCH}",
    ),
    "lbf_mappo": Task(
        "LevelBasedForaging 2s-8x8-2p-2f-coop", "MAPPO, recurrent", 20_000_000,
        {
            "wdjax MAPPO": jumanji("LevelBasedForaging-v0", FORAGING,
                MAVA_PPO | {"network": RNN | {"activation": "relu"}}),
            "Mava MAPPO": mava_chart("lbf_results/2s-8x8-2p-2f-coop_rec_mappo", "1.00"),
        },
        (SAMPLED_RETURN,),
        note="A return of 1 is all the food. In Mava every agent receives the sum of the rewards, "
        f"here its own. {LARGE_BATCH}",
    ),
}  # fmt: skip

# gymnax

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


GYMNAX_TASKS = {
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
TASKS = {**MPE_TASKS, **SMAX_TASKS, **OVERCOOKED_TASKS, **JUMANJI_TASKS, **GYMNAX_TASKS}
