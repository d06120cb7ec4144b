"""wdjax train --dry-run: describe a run without training or writing files."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence

import jax

from wdjax.experiments.auto_scale import in_words
from wdjax.train import (
    PolicyConfig,
    TrainConfig,
    bytes_free,
    compile_run,
    complete_env_params,
    make_learner,
    plain_config,
    read_config,
)
from wdjax.train.host.progress import schedule_warnings
from wdjax.train.learning import Policy
from wdjax.yaml_reader import flat


def dry_run(
    config: TrainConfig,
    trust: Collection[str] = (),
    callbacks: Sequence[str] = (),
    begun: bool = False,
) -> Iterator[str]:
    """Yield lines about changed fields, length, parameters, batches, kernels and memory of a run.

    Args:
        config: configuration of the run.
        trust: as for `make_learner`.
        callbacks: names of callbacks, which are checked.
        begun: whether the run folder contains a run.

    Raises:
        ValueError, TypeError, OSError: as `Trainer`.
    """
    from wdjax.train.trainer import check_run  # slow import

    learner = make_learner(config, trust)
    check_run(learner, callbacks, begun)
    yield from changed_fields(config)
    yield ""
    steps = config.env_steps_per_update
    yield (
        f"{config.num_updates:,} updates of {steps:,} env steps ({config.num_envs:,} replicas x "
        f"{config.rollout_length:,} steps), {config.num_updates * steps:,} in total, on "
        f"{learner.setup.num_devices} x "
        f"{jax.devices()[0].device_kind}"
    )
    yield from schedule_warnings(config, learner.config)
    state = learner.shapes
    for name, policy in learner.setup.policies.items():
        size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.policies[name].params))
        yield f"{name}: {policy.config.algorithm}, {size:,} parameters; {batches(config, policy)}"
    run = compile_run(learner)
    yield from run.kernels
    memory = f"{in_words(run.bytes_needed)} of memory per device ({in_words(bytes_free())} free)"
    yield f"{memory}; compiled in {run.seconds:.1f} s"


def changed_fields(config: TrainConfig) -> list[str]:
    """Return "field: value" for every field that is not at its default."""
    policies = {
        name: PolicyConfig(options=type(own.options)()) for name, own in config.policies.items()
    }
    plain = complete_env_params(TrainConfig(env=config.env, policies=policies))
    usual = flat(plain_config(dataclasses.replace(plain, env="")))  # no default
    own = flat(plain_config(read_config(config)))
    return [
        f"{name}: {value}"
        for name, value in own.items()
        if name not in usual or usual[name] != value
    ]


def batches(config: TrainConfig, policy: Policy) -> str:
    """Describe an update of a policy: transitions, gradient steps, and transitions per step."""
    agents, options = policy.assignment.num_agents, policy.config.options
    rows = config.env_steps_per_update * agents
    words = (
        f"{rows:,} transitions per update ({config.env_steps_per_update:,} env steps x "
        f"{agents:,} agents)"
    )
    if not policy.config.trainable:
        return f"{words}, not trained"
    if hasattr(options, "buffer_size"):
        size, times = options.batch_size, options.updates_per_rollout
        words += f", replay buffer of {options.buffer_size:,}"
    else:
        minibatches, epochs = getattr(options, "minibatches", 1), getattr(options, "epochs", 1)
        size, times = rows // minibatches, minibatches * epochs
    total = times * config.num_updates
    return f"{words}, {times:,} gradient steps on {size:,} transitions each, {total:,} in the run"
