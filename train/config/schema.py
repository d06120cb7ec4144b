"""Run configuration as frozen dataclasses.

A preset is a YAML file with these fields (`wdjax.train.load_config`). `traced` fields become leaves
of `TrainState.hypers` and can be swept under vmap without recompilation. All other fields are
static: they determine shapes and code paths. Field metadata is defined in config/facts.py.
"""

import dataclasses
import math
from typing import Any, Literal

from wdjax.tables import html_table
from wdjax.train.config.facts import Schedule, changed, static, traced

_COUNT = "at least 1 and below 2**31"


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Network of a policy: encoder, hidden layers, optional memory, action and value heads."""

    hidden_sizes: tuple[int, ...] = static(
        (64, 64), read=True, allowed="widths of at least 1, below 2**31"
    )
    """Width of each hidden layer."""
    activation: Literal["relu", "tanh", "gelu", "silu"] = static("relu", read=True)
    """Activation function after each hidden layer."""
    layer_norm: bool = static(False, read=True)
    """Normalize the inputs of each activation over the layer (layer normalization)."""
    shared_trunk: bool = static(False, read=True)
    """Share encoder, hidden layers and memory between the action and value heads. Built-in
    algorithms other than A2C and PPO do not use it."""
    recurrent_size: int = static(0, read=True, allowed="at least 0 (0: feed-forward), below 2**31")
    """Width of the recurrent memory between the hidden layers and the heads. 0: no memory, a
    feed-forward policy."""
    memory: str = static("gru", read=True, code=True)
    """Type of the recurrent memory: gru, lstm, mingru, or a custom class, "package.module:Class".
    Requires `recurrent_size`."""
    recurrent_layers: int = static(1, read=True, allowed="at least 1, below 2**31")
    """Number of memories, one after the other: the outputs of each are the inputs of the next.
    Requires `recurrent_size`."""
    head_hidden_sizes: tuple[int, ...] = static(
        (), read=True, allowed="widths of at least 1, below 2**31"
    )
    """Widths of additional hidden layers in each head, after the shared layers. Action and value
    heads have separate layers. Empty: linear heads."""
    encoder: str = static("flat", read=True, code=True)
    """Module that maps observations to features: flat (concatenated), fourier, deep_sets,
    attention, cnn (images), or a custom class, "package.module:Class"."""
    encoder_options: dict[str, Any] = static(dict, read=True, code=True)
    """Keyword arguments of the encoder. Set them in YAML or Python; the command line can only
    change those that the preset has."""
    initializer: Literal["orthogonal", "xavier", "lecun"] = "orthogonal"
    """Initializer of weight matrices. orthogonal: gain sqrt(2), policy head 0.01, value head and
    inputs of the memory 1. Recurrent matrices are always orthogonal. Encoders and the last layers
    of DDPG and SAC use initializers of their own. Biases start at 0."""
    compute_dtype: Literal["float32", "bfloat16"] = static("float32", read=True)
    """Data type of matrix products and activations in hidden layers. bfloat16 is faster for wide
    layers on a GPU, with about three significant digits. Parameters, heads, losses and sums are
    always float32, but on a GPU the inputs of products are rounded to tf32 or float16."""


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """Configuration of a policy: agents, algorithm, network, opponents, optimizer and options."""

    agents: tuple[str, ...] = ()
    """Agents that the policy controls: a group, a slice of a group ("runner[0:50]"), or every agent
    of a group individually ("runner[*]"). Empty: the group with the policy's name."""
    agent_type_feature: bool = False
    """Append a one-hot vector to the network's input that identifies the entry of `agents` to which
    an agent belongs. Useful for a policy of several groups. With "runner[*]" it is the agent id."""
    algorithm: str = static("PPO", code=True)
    """A2C: one gradient step on the whole rollout. PPO: epochs of minibatches with a clipped ratio.
    MAPPO: PPO with a central critic for all agents of the policy or team. PQN: Q-learning from
    rollouts. DQN: Q-learning from a replay buffer. VDN and QMIX: DQN on the value of a team. DDPG
    and SAC: continuous actions, from a replay buffer. Or a custom algorithm: a name registered by
    `register_algorithm`, or "package.module:Class"."""
    trainable: bool = True
    """Update the policy. false: it acts with fixed parameters."""
    checkpoint: str = ""
    """Initial parameters of a new run: "runs/a" (newest checkpoint, policy of the same name),
    "runs/a@best" or "runs/a@120" (a specific checkpoint), "runs/a:other" (another policy),
    "reference:tag_continuous" (a bundled run).
    Empty: random initialization."""
    past_selves: int = static(0, allowed="at least 0 and below 2**31")
    """Number of snapshots of the policy that are kept as opponents for other policies (self-play).
    0: none."""
    past_selves_every: int = static(10, allowed=_COUNT)
    """Updates between snapshots of the policy. A new snapshot replaces the oldest."""
    past_selves_fraction: Schedule = traced(0.5, logged=False, allowed="at least 0 and below 1")
    """Probability that a snapshot acts in place of the policy in a block of replicas during a
    rollout. The policy does not learn from these replicas. A number or a schedule of [env_step,
    value] pairs."""
    opponents: dict[str, Schedule] = static(dict)
    """Opponents that act in place of this policy while other policies learn: name -> share of the
    blocks of replicas, a number or a schedule of [env_step, value] pairs. A name is a script of the
    environment, "random", or a saved policy with the same network, written as for `checkpoint` (a
    run path must contain "/")."""
    opponents_every: int = static(1, allowed=_COUNT)
    """Resample the opponent every N rollouts. Episodes shared by two opponents are excluded from
    win rates."""
    opponents_priority: float = static(0.0, allowed="finite and at least 0")
    """Exponent p of prioritized opponent sampling: each opponent's probability is proportional to
    its share times (1 - win rate of the other policies against it)^p. 0: proportional to its share.
    """
    network: NetworkConfig = NetworkConfig()
    """Network architecture."""
    optimizer: Literal["adam", "radam", "rmsprop", "sgd"] = "adam"
    """Optimizer, applied to the clipped gradients."""
    optimizer_epsilon: float = static(1e-5, allowed="finite and above 0")
    """Epsilon in the denominator of adam, radam and rmsprop."""
    learning_rate: Schedule = traced(3e-4)
    """Learning rate: a number, a schedule [[env_step, value], ...], or a schedule over the run
    {fraction: [[0, value], ..., [1, value]]}."""
    max_grad_norm: float = traced(0.5, allowed="above 0")
    """Maximum global norm of gradients; larger gradients are rescaled. .inf: no clipping."""
    normalize_observation: bool = static(False, read=True)
    """Normalize each Box of the observation by its running mean and standard deviation, and clip it
    to [-10, 10]."""
    options: Any = static(dict, code=True, flat=True)
    """Options of the algorithm, its `Options` dataclass. In YAML and on the command line they are
    written like the other fields of the policy: `clip: 0.1`, `--policies.agent.clip 0.1`."""

    def _repr_html_(self) -> str:
        return html_table(changed(self), caption="PolicyConfig, non-default fields")


@dataclasses.dataclass(frozen=True)
class TeamConfig:
    """Configuration of a team: policies that one algorithm updates, as with a shared critic."""

    policies: tuple[str, ...] = ()
    """Names of its policies, which may not set `algorithm` or options of their own."""
    algorithm: str = static("PPO", code=True)
    """Algorithm of all policies of the team."""
    options: Any = static(dict, code=True, flat=True)
    """Options of the algorithm. In YAML and on the command line they are written like the other
    fields of the team."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Configuration of one training run."""

    env: str = dataclasses.field(metadata={"code": True})
    """Environment (see `wdjax list`), or a custom one, "package.module:Class"."""
    policies: dict[str, PolicyConfig]
    """Policy name -> its configuration. Every agent belongs to exactly one policy."""
    teams: dict[str, TeamConfig] = dataclasses.field(default_factory=dict)
    """Team name -> its policies and their algorithm. A policy without a team learns alone."""
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of `wdjax.make`."""
    env_schedules: dict[str, Schedule] = static(dict)
    """Environment parameter -> its schedule, in place of a constant in env_params. A schedule is a
    list of [env_step, value] pairs or {fraction: [[0, value], [1, value]]}; the parameter changes
    between updates. Only numbers of `env.default_params` that are floats."""
    num_envs: int = static(64, allowed=_COUNT)
    """Number of replicas of the environment."""
    rollout_length: int = static(128, allowed=_COUNT)
    """Steps of each replica between two updates."""
    rollout_unroll: int = static(0, allowed="at least 0 (0: automatic), below 2**31")
    """Steps in each iteration of the compiled rollout loop. 0: automatic, 3 to 5 on a GPU unless a
    step is so large that they would take long to compile, and 1 on a CPU."""
    kernels: bool = True
    """Use fused kernels for acting and learning on NVIDIA GPUs (Ampere and later) where a policy
    supports them (feed-forward A2C or PPO, discrete actions), for recurrent memories, layer_norm,
    the encoder deep_sets, and small environments. Up to four times as fast as plain XLA. false:
    plain XLA."""
    search_products: bool = True
    """On a GPU, for policies without fused kernels: autotune matrix products, Triton's against the
    library's, before the run starts. Takes 8 to 13 s and makes updates up to a sixth faster."""
    total_env_steps: int = static(1_000_000, allowed="at least 1")
    """Env steps of the whole run (one replica advanced once), rounded up to whole updates."""
    stop_at: dict[str, float] = dataclasses.field(default_factory=dict)
    """Metric -> threshold. The run saves and ends one chunk after the first chunk in which every
    listed metric reaches its threshold. A sweep ends a program once all of its members have reached
    them."""
    reset: Literal["fresh", "fixed"] | int = "fresh"
    """Start states. fresh: a new random start at every reset. fixed: the same start for all
    episodes. An integer n: a pool of n starts."""
    seed: int = static(0, allowed="at least 0 and below 2**32")  # jax drops higher bits
    """Random seed of the run."""
    num_blocks: int = static(0, allowed="at least 0 (0: gcd(num_envs, 8))")
    """Blocks of replicas with separate random streams. 0: gcd(num_envs, 8)."""
    devices: int = 0
    """Number of devices that share the replicas, a divisor of num_blocks. 0: the largest possible
    number (the CPU counts as one)."""
    on_bad_numbers: Literal["stop", "skip"] = "stop"
    """Action on an update that produces NaN or infinity. stop: save the state before it and end the
    run. skip: discard the update and continue."""
    updates_per_chunk: int = static(0, allowed="at least 0 (0: about 2 s of updates), below 2**31")
    """Updates per chunk. Each chunk ends with a line of metrics.jsonl. 0: about 2 s of updates, at
    most a twentieth of the run, measured at the start (in sweeps, a tenth of the run)."""
    checkpoint_every_updates: int = static(
        0, allowed="at least 0 (0: use checkpoint_every), below 2**31"
    )
    """Updates between checkpoints and between evaluations for the best checkpoint. 0: use
    checkpoint_every."""
    checkpoint_every: int = static(10, allowed=_COUNT)
    """Chunks between checkpoints if checkpoint_every_updates is 0."""
    keep_checkpoints: int = static(2, allowed=_COUNT)
    """Number of newest checkpoints to keep."""
    best_metric: str = "auto"
    """Evaluation metric that selects the best checkpoint: "agent/episode_return", or a statistic of
    the environment such as "episode_tags". auto: the return if exactly one policy trains, else
    none. none: keep no best checkpoint."""
    evaluate_every_updates: int = static(
        0, allowed="at least 0 (0: use evaluate_every), below 2**31"
    )
    """Updates between evaluations, logged as eval/... 0: use evaluate_every."""
    evaluate_every: int = static(0, allowed="at least 0 (0: only if best_metric needs evaluations)")
    """Chunks between evaluations. 0: evaluate at checkpoints if best_metric needs it, else never.
    """
    eval_episodes: int = static(128, allowed=_COUNT)
    """Episodes per evaluation."""
    eval_greedy: bool = True
    """Take the most likely action in evaluations during training. false: sample actions, as `wdjax
    eval` does."""

    def _repr_html_(self) -> str:
        return html_table(changed(self), caption="TrainConfig, non-default fields")

    def policy(self, name: str) -> PolicyConfig:
        """Return the configuration of a policy, with the algorithm and options of its team."""
        policy = self.policies[name]
        team = next((own for own in self.teams.values() if name in own.policies), None)
        if team is None:
            return policy
        return dataclasses.replace(policy, algorithm=team.algorithm, options=team.options)

    @property
    def blocks(self) -> int:
        return self.num_blocks or math.gcd(self.num_envs, 8)

    @property
    def env_steps_per_update(self) -> int:
        return self.num_envs * self.rollout_length

    @property
    def num_updates(self) -> int:
        """Updates of the whole run; total_env_steps is rounded up to whole updates."""
        return -(-self.total_env_steps // self.env_steps_per_update)

    @property
    def evaluates(self) -> bool:
        """Whether the run is evaluated during training."""
        return max(self.evaluate_every_updates, self.evaluate_every) > 0 or self.best_by is not None

    @property
    def updates_per_checkpoint(self) -> int:
        """Updates between checkpoints; 0 while the chunk size is unknown."""
        return self.checkpoint_every_updates or self.checkpoint_every * self.updates_per_chunk

    @property
    def updates_per_evaluation(self) -> int:
        """Updates between evaluations, if the run has any; 0 while the chunk size is unknown."""
        if not (self.evaluate_every_updates or self.evaluate_every):
            return self.updates_per_checkpoint
        return self.evaluate_every_updates or self.evaluate_every * self.updates_per_chunk

    @property
    def best_by(self) -> str | None:
        """The metric that selects the best checkpoint, or None."""
        trained = [name for name, policy in self.policies.items() if policy.trainable]
        if self.best_metric == "auto":
            return f"{trained[0]}/episode_return" if len(trained) == 1 else None
        return None if self.best_metric == "none" else self.best_metric
