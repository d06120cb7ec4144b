"""What a run is, as frozen dataclasses: a preset is a YAML file with these fields (`wdjax.train.load_config`).

Fields that are `traced` become leaves of `TrainState.hypers`: they can be swept under vmap without a recompile. All
others fix shapes and code paths. What else is true of a field stands at it, too (config/facts.py).
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Literal

from wdjax.tables import html_table
from wdjax.train.config.facts import Schedule, changed, leaves, static, traced
from wdjax.train.config.reading import SHORT

_COUNT = "at least 1 and below 2**31"


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """An encoder, hidden layers, a recurrent cell where wanted, and linear heads for actions and value."""

    hidden_sizes: tuple[int, ...] = static((64, 64), read=True, allowed="widths of at least 1, below 2**31")
    """width of each hidden layer"""
    activation: Literal["relu", "tanh", "gelu", "silu"] = static("relu", read=True)
    """after each hidden layer"""
    shared_trunk: bool = static(True, read=True)
    """whether action and value heads share all that is before them (else each has its own; so it is in DDPG always)"""
    recurrent_size: int = static(0, read=True, allowed="at least 0 (0: not recurrent), below 2**31")
    """width of a GRU between the hidden layers and the heads; 0: none, the policy has no memory"""
    head_hidden_sizes: tuple[int, ...] = static(
        (), on="on-policy", read=True, allowed="widths of at least 1, below 2**31"
    )  # fmt: skip
    """width of each hidden layer between the GRU, or the last shared layer, and a head: the heads for actions and value
    have these layers each for itself; empty: none"""
    encoder: str = static("flat", read=True, code=True)
    """what turns an observation into numbers: flat (laid out in a row), or your own, "package.module:Class" """
    encoder_options: dict[str, Any] = static(dict, read=True, code=True)
    """arguments of the encoder, by name; in YAML or Python: on the command line those that a preset has, no others"""
    initializer: Literal["orthogonal", "xavier", "lecun"] = "orthogonal"
    """of the weight matrices (orthogonal: gain sqrt 2, policy head 0.01, value head and what enters a GRU 1; its own
    recurrent matrix is always orthogonal); encoders, and DDPG's last layers, have their own; biases start at 0"""
    compute_dtype: Literal["float32", "bfloat16"] = static("float32", read=True)
    """of the hidden layers' products and activations: bfloat16 is faster for wide layers on a GPU and rounds to three
    digits; parameters, heads, losses and all sums are float32 in any case"""


@dataclasses.dataclass(frozen=True)
class DDPGConfig:
    """What only DDPG has. TD3 is twin_critics with policy_delay 2, target_noise 0.2 and gaussian noise."""

    critic_learning_rate: Schedule = traced(1e-3)
    """of the critics; the actor's is the policy's learning_rate"""
    tau: float = traced(0.005, allowed="above 0 and at most 1")
    """how far the target networks move towards the others in a gradient step of the actor"""
    n_step: int = static(1, allowed=_COUNT)
    """rewards in a row that a target sums before it asks the target critic; also across rollouts"""
    buffer_size: int = static(100_000, allowed=_COUNT)
    """rows kept to learn from, one agent's step each; a multiple of num_blocks"""
    batch_size: int = static(256, allowed=_COUNT)
    """rows of a gradient step, equally many from every block of replicas"""
    warmup: int = static(1_000, allowed=_COUNT)
    """rows in the buffer (in each block its share) before the first gradient step"""
    uniform_warmup: bool = True
    """draw actions uniformly from the box until then (else the new actor and its noise act from the start)"""
    updates_per_rollout: int = static(64, allowed=_COUNT)
    """gradient steps after each rollout"""
    twin_critics: bool = static(False, read=True)
    """learn two critics and believe the lower target"""
    policy_delay: int = static(1, allowed=_COUNT)
    """gradient steps of the critics for each one of the actor and of the target networks"""
    target_noise: float = traced(0.0, allowed="finite and at least 0")
    """deviation of the normal noise on the target actor's actions, in half widths of the box; 0: none"""
    target_noise_clip: float = traced(0.5, allowed="finite and at least 0")
    """where that noise is clipped, in half widths of the box"""
    noise: Literal["ornstein_uhlenbeck", "gaussian", "none"] = "ornstein_uhlenbeck"
    """on actions in training: s <- (1 - damping) s + stddev N(0, 1), from 0 in every episode; or stddev N(0, 1)"""
    noise_scale: Schedule = traced(1.0)
    """times the noise"""
    noise_stddev: float = traced(0.2, allowed="finite and at least 0")
    """in half widths of the box"""
    noise_damping: float = traced(0.15, allowed="between 0 and 1")
    """of the Ornstein-Uhlenbeck process; its deviation becomes stddev / sqrt(1 - (1 - damping)^2)"""


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """One policy: who plays it, and how it learns."""

    agents: tuple[str, ...] = ()
    """selectors: a group, a slice of one ("runner[0:50]"), or each agent of a group by itself ("runner[*]"); empty: the
    group that has the policy's name"""
    agent_type_feature: bool = False
    """show its network which selector of `agents` an agent belongs to, one-hot: for a policy of several groups; with
    "runner[*]" that is the agent's number, its agent id"""
    algorithm: str = static("PPO", code=True)
    """A2C: one gradient step on all rows; PPO: epochs of minibatches with a clipped ratio; DDPG: from a replay; or your
    own, by the name that `register_algorithm` gave it, or "package.module:Class" """
    trainable: bool = True
    """false: the policy plays but never changes"""
    checkpoint: str = ""
    """what the policy begins with when a run is new: "runs/a" (the policy of its name there, at the newest checkpoint),
    "runs/a@best" or "runs/a@120" (another one), "runs/a:other" (another policy), "reference:tag_continuous" (what comes
    with wdjax); empty: with random parameters"""
    past_selves: int = static(0, allowed="at least 0 and below 2**31")
    """self-play: how many earlier selves are kept for other policies to play against; 0: none (rollout/self_play.py)"""
    past_selves_every: int = static(10, allowed=_COUNT)
    """updates between two snapshots of the policy, each of which takes the place of the oldest"""
    past_selves_fraction: Schedule = traced(0.5, logged=False, allowed="at least 0 and below 1")
    """probability that an earlier self plays a block of replicas in a rollout: nothing is learned there; a
    number, or [env_step, value] pairs"""
    opponents: dict[str, Schedule] = static(dict)
    """who else plays in its place, for other policies to learn against: name -> share of the blocks of replicas, a
    number or [env_step, value] pairs. A script of the game, "random", or a policy of a run with the same network, named
    as for `checkpoint`, a run with a "/" (rollout/self_play.py)"""
    opponents_every: int = static(1, allowed=_COUNT)
    """rollouts that somebody plays in its place in a row (an earlier self until it is written over): of an episode that
    two have played nobody knows against whom it was won"""
    opponents_priority: float = static(0.0, allowed="finite and at least 0")
    """p: among all who play in its place each is as likely as its share times (1 - the others' win rate)^p; 0: as its
    share (rollout/standings.py)"""
    network: NetworkConfig = NetworkConfig()
    """its network"""
    optimizer: Literal["adam", "rmsprop", "sgd"] = "adam"
    """what shapes the clipped gradient before the learning rate multiplies it"""
    optimizer_epsilon: float = static(1e-5, allowed="finite and above 0")
    """added to the denominator of adam and rmsprop"""
    learning_rate: Schedule = traced(3e-4)
    """a number, [[env_step, value], ...], or over the run {fraction: [[0, value], ..., [1, value]]}"""
    entropy_coefficient: Schedule = traced(0.01, on="on-policy")
    """weight of the entropy bonus"""
    value_coefficient: Schedule = traced(0.5, on="on-policy")
    """weight of the mean squared error of the value"""
    gamma: float = traced(0.99, allowed="between 0 and 1")
    """discount"""
    gae_lambda: float = traced(0.95, on="on-policy", allowed="between 0 and 1")
    """of generalised advantage estimation; 1: the whole return"""
    clip: float = traced(0.2, on="PPO", allowed="above 0")
    """how far from 1 the probability ratio may move"""
    value_clip: float = traced(math.inf, on="PPO", allowed="above 0")
    """how far from its old value the value may move; .inf: free"""
    target_kl: float = traced(math.inf, on="PPO", allowed="above 0")
    """no further gradient steps on a rollout once approx_kl exceeds it in a minibatch; .inf: never"""
    max_grad_norm: float = traced(0.5, allowed="above 0")
    """global norm to which gradients are clipped; .inf: never"""
    decisions_only: bool = static(False, on="decisions")
    """learn only from rows in which the action mask left a choice: the rewards until the next of them are summed, and
    gamma counts them and not steps. Let rollouts (rollout_length) end where the agent decides: V is learned only there
    """
    normalize_observation: bool = static(False, read=True)
    """shift and scale every Box of the observation by its running mean and deviation, and clip it at 10"""
    normalize_reward: bool = static(False, on="on-policy")
    """divide rewards by the running deviation of the discounted return, and clip them at 10"""
    normalize_advantage: bool = static(False, on="on-policy")
    """shift and scale the advantages of each minibatch to mean 0 and deviation 1, over its live rows"""
    neg_pos_env_ratio: float = static(-1.0, on="on-policy", allowed="finite (below 0: learn from all replicas)")
    """for sparse goals: learn from the replicas in which an agent terminated (positive) and, drawn at random, at most
    so many times as many others (negative); from all where there is no positive one; below 0: always from all"""
    action_distribution: Literal["gaussian", "squashed_gaussian"] = static("gaussian", on="on-policy", read=True)
    """in a Box: a normal one, its actions clipped to the box; or squashed into the box by tanh"""
    epochs: int = static(1, on="minibatches", allowed=_COUNT)
    """passes over a rollout"""
    minibatches: int = static(1, on="minibatches", allowed=_COUNT)
    """gradient steps a pass; must divide a block's rows (rollout_length x num_envs / num_blocks x agents; without
    rollout_length where the network is recurrent: whole sequences stay together)"""
    ddpg: DDPGConfig = static(DDPGConfig(), on="DDPG")
    """what only DDPG has"""
    options: Any = static(dict, code=True)
    """what an algorithm of your own takes (its `Options`), by name"""

    def _repr_html_(self) -> str:
        return html_table(changed(self), caption="PolicyConfig, what is not at its default")


def policy_fields(name: str, policies: Iterable[str]) -> list[str]:
    """Returns the dotted names of the fields that a bare name may stand for in policies, the nearest to the top:
    "learning_rate", or "lr" -> ["policies.agent.learning_rate"]."""
    name = SHORT.get(name, name)
    held = sorted((path for path, _, _ in leaves(PolicyConfig()) if path.split(".")[-1] == name), key=len)
    return [f"policies.{policy}.{path}" for path in held[:1] for policy in policies]


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    env: str = dataclasses.field(metadata={"code": True})
    """an environment (`wdjax list`), or your own, "package.module:Class" """
    policies: dict[str, PolicyConfig]
    """policy name -> its configuration; every agent belongs to exactly one policy"""
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    """arguments of `wdjax.make`"""
    num_envs: int = static(64, allowed=_COUNT)
    """replicas of the environment"""
    rollout_length: int = static(128, allowed=_COUNT)
    """steps of every replica between two updates"""
    rollout_unroll: int = static(1, allowed=_COUNT)
    """steps in one pass of the compiled loop: on a GPU 4 makes small games faster, and takes longer to compile"""
    kernels: bool = True
    """act and learn by kernels on NVIDIA GPUs (Ampere and later), where a policy has them (feed-forward A2C or PPO,
    discrete actions): up to four times as fast as plain XLA, to which false goes back"""
    search_products: bool = True
    """on a GPU, where no kernel does them: try Triton's matrix products beside the library's before the run begins,
    8 to 13 s for updates that are up to a sixth faster"""
    total_env_steps: int = static(1_000_000, allowed="at least 1")
    """replica steps of the whole run, rounded up to whole updates"""
    stop_at: dict[str, float] = dataclasses.field(default_factory=dict)
    """metric -> value: the run ends, saved, one chunk after the first in which each of these metrics is at least so
    high (in sweeps, a program ends so once all of its members have been there)"""
    reset: Literal["fresh", "fixed"] | int = "fresh"
    """fresh: a new random start at every reset; fixed: one start for all; a number n: a pool of n starts"""
    seed: int = static(0, allowed="at least 0 and below 2**32")  # jax drops higher bits
    """of everything random in the run"""
    num_blocks: int = static(0, allowed="at least 0 (0: gcd(num_envs, 8))")
    """blocks of replicas that draw their random numbers together; 0: gcd(num_envs, 8)"""
    devices: int = 0
    """how many share the replicas, a divisor of num_blocks; 0: the most of those there are (a CPU counts as one)"""
    on_bad_numbers: Literal["stop", "skip"] = "stop"
    """an update makes a NaN or an infinity: end the run, saved as it was before; or leave that update out and go on"""
    updates_per_chunk: int = static(0, allowed="at least 0 (0: as many as take about 2 s), below 2**31")
    """updates between two looks of the host, each a line of metrics.jsonl; 0: as many as take about 2 s, at most a
    twentieth of the run, found in its first seconds and kept (in sweeps, a tenth of the run)"""
    checkpoint_every_updates: int = static(0, allowed="at least 0 (0: checkpoint_every counts), below 2**31")
    """updates between two checkpoints, and evaluations for the best; 0: as checkpoint_every says"""
    checkpoint_every: int = static(10, allowed=_COUNT)
    """chunks between two checkpoints, where checkpoint_every_updates is 0"""
    keep_checkpoints: int = static(2, allowed=_COUNT)
    """how many of the newest checkpoints stay"""
    best_metric: str = "auto"
    """the metric by which evaluations choose the best checkpoint ("agent/episode_return", or a statistic of the
    environment, "episode_tags"); auto: the return where one policy trains, else none; none: keep no best"""
    evaluate_every_updates: int = static(0, allowed="at least 0 (0: evaluate_every counts), below 2**31")
    """updates between two evaluations, logged as eval/...; 0: as evaluate_every says"""
    evaluate_every: int = static(0, allowed="at least 0 (0: only where best_metric asks for evaluations)")
    """chunks between two evaluations; 0: only where best_metric asks for them, at checkpoints"""
    eval_episodes: int = static(128, allowed=_COUNT)
    """episodes of each evaluation"""
    eval_greedy: bool = True
    """evaluations while a run trains take the most likely action (else they draw it, as `wdjax eval` does)"""

    def _repr_html_(self) -> str:
        return html_table(changed(self), caption="TrainConfig, what is not at its default")

    @property
    def blocks(self) -> int:
        return self.num_blocks or math.gcd(self.num_envs, 8)

    @property
    def env_steps_per_update(self) -> int:
        return self.num_envs * self.rollout_length

    @property
    def num_updates(self) -> int:
        """Updates of the whole run: never fewer env steps than asked."""
        return -(-self.total_env_steps // self.env_steps_per_update)

    @property
    def evaluates(self) -> bool:
        """Whether the run is evaluated while it trains."""
        return max(self.evaluate_every_updates, self.evaluate_every) > 0 or self.best_by is not None

    @property
    def updates_per_checkpoint(self) -> int:
        """Updates between two checkpoints; 0 as long as the size of a chunk is not known."""
        return self.checkpoint_every_updates or self.checkpoint_every * self.updates_per_chunk

    @property
    def updates_per_evaluation(self) -> int:
        """Updates between two evaluations, where the run has any; 0 as long as the size of a chunk is not known."""
        own = self.evaluate_every_updates or self.evaluate_every * self.updates_per_chunk
        return own if self.evaluate_every_updates or self.evaluate_every else self.updates_per_checkpoint

    @property
    def best_by(self) -> str | None:
        """The metric that chooses the best checkpoint, or None."""
        trained = [name for name, policy in self.policies.items() if policy.trainable]
        if self.best_metric == "auto":
            return f"{trained[0]}/episode_return" if len(trained) == 1 else None
        return None if self.best_metric == "none" else self.best_metric
