"""Rows of cooperative games of JaxMARL."""

from collections.abc import Mapping
from typing import Any

from wdjax.experiments.reference.peers.parts import (
    BY_AGENT,
    GREEDY_RETURN,
    MAPPO,
    METRICS,
    NETWORK,
    PADDED,
    PPO,
    PQN,
    REPORTS,
    RNN,
    SILENT,
    TRAINING_RETURN,
    Programs,
    epsilon,
    preset,
    to_zero,
)
from wdjax.experiments.reference.peers.programs import (
    GREEDY,
    SAMPLED,
    TRAINING,
    WON,
    Ours,
    Task,
    Theirs,
)

# MPE


def mpe(env: str, policies: Mapping[str, Any], num_envs: int = 16, steps: int = 128) -> Ours:
    """Return a program on an MPE environment that measures its first policy."""
    return Ours(preset(f"jaxmarl:{env}", num_envs, steps, policies), (next(iter(policies)),))


def ippo_mpe(shared_trunk: bool) -> dict[str, Any]:
    """Return PPO for MPE."""
    net = {"hidden_sizes": [64, 64], "activation": "tanh", "shared_trunk": shared_trunk}
    return PPO | {"network": NETWORK | net, "learning_rate": to_zero(2.5e-4)}


SPREAD, TAG = "MPE_simple_spread_v3", "MPE_simple_tag_v3"
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
TASKS = {**MPE_TASKS, **SMAX_TASKS, **OVERCOOKED_TASKS}
