"""Building blocks for custom algorithms: the parts of PPO and A2C, replay buffers and reductions.

On several devices `Algorithm.update` runs on each device, with that device's share of the replicas.
Parameters, statistics and metrics must be equal on all devices: reduce gradients and sums with
`total` or `average` before they are used. On one device these functions change nothing. Call them
outside of the function that is differentiated: the gradient of the mean loss is the `total` of the
gradients of each device's summed loss, divided by the `total` count. `fit` does all this.
"""

from typing import TYPE_CHECKING

from wdjax.lazy import import_when_used

if TYPE_CHECKING:
    from wdjax.train.algorithms.a2c import A2C
    from wdjax.train.algorithms.ddpg import DDPG
    from wdjax.train.algorithms.fit import (
        Batch,
        Mean,
        Terms,
        descend,
        fit,
        make_optimizer,
        normalized_mean,
    )
    from wdjax.train.algorithms.on_policy import (
        OnPolicy,
        OnPolicyOptions,
        apply_transforms,
        update_normalizers,
    )
    from wdjax.train.algorithms.ppo import (
        PPO,
        PPOOptions,
        policy_terms,
        require_minibatches,
        value_error,
    )
    from wdjax.train.algorithms.replay import Replay, ReplayBatch, Steps, new_replay
    from wdjax.train.algorithms.returns import (
        Experience,
        experience,
        gae,
        next_value,
        value_after,
    )
    from wdjax.train.config.facts import Schedule, static, traced
    from wdjax.train.config.schema import PolicyConfig, TrainConfig
    from wdjax.train.devices.blocks import block_keys, draw_blocks
    from wdjax.train.devices.collectives import (
        all_rows,
        any_of,
        average,
        block_numbers,
        largest,
        num_shards,
        own_rows,
        smallest,
        total,
    )
    from wdjax.train.devices.moments import masked_mean, masked_variance, normalize
    from wdjax.train.networks.actor_critic import ActorCritic, Trunk
    from wdjax.train.networks.distributions import (
        Categorical,
        Distribution,
        Gaussian,
        make_distribution,
        sample_blocks,
    )
    from wdjax.train.networks.encoders import FlatEncoder, encode, encoded_size, make_encoder
    from wdjax.train.networks.memories import RecurrentMemory
    from wdjax.train.networks.values import CriticNetwork, ValueNetwork
    from wdjax.train.state import (
        Context,
        Evaluation,
        Hypers,
        Memory,
        Policy,
        PolicyState,
        Rollout,
        Rows,
        Team,
        TrainState,
    )
    from wdjax.train.state.agents import Assignment
    from wdjax.train.state.algorithm import Algorithm
    from wdjax.train.state.aliases import Metrics
    from wdjax.train.state.metric import Metric
    from wdjax.train.state.normalization import RunningStatistics, new_statistics, update_statistics
    from wdjax.train.state.rollout_metrics import played_metrics, rollout_metrics

__all__ = [
    "A2C", "DDPG", "PPO", "ActorCritic", "Algorithm", "Assignment", "Batch", "Categorical",
    "Context", "CriticNetwork", "Distribution", "Evaluation", "Experience", "FlatEncoder",
    "Gaussian", "Hypers", "Mean", "Memory", "Metric", "Metrics", "OnPolicy", "OnPolicyOptions",
    "PPOOptions", "Policy", "PolicyConfig", "PolicyState", "RecurrentMemory", "Replay",
    "ReplayBatch", "Rollout", "Rows", "RunningStatistics", "Schedule", "Steps", "Team", "Terms",
    "TrainConfig", "TrainState", "Trunk", "ValueNetwork", "all_rows", "any_of", "apply_transforms",
    "average", "block_keys", "block_numbers", "descend", "draw_blocks", "encode", "encoded_size",
    "experience", "fit", "gae", "largest", "make_distribution", "make_encoder", "make_optimizer",
    "masked_mean", "masked_variance", "new_replay", "new_statistics", "next_value", "normalize",
    "normalized_mean", "num_shards", "own_rows", "played_metrics", "policy_terms",
    "require_minibatches", "rollout_metrics", "sample_blocks", "smallest", "static", "total",
    "traced", "update_normalizers", "update_statistics", "value_after", "value_error",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__, _HOME = import_when_used(__name__)
