"""WarpDrive's run configurations as configurations of wdjax, with a report of every setting.

Source: salesforce/warp-drive 2.7.1 (bac017e): warp_drive/training/run_configs,
warp_drive/training/trainers, and the scripts that assign agents to policies.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wdjax.checks import did_you_mean, require, require_known
from wdjax.env import SINGLE_AGENT, Env
from wdjax.envs import list_envs
from wdjax.spaces import Box
from wdjax.train.config.env_params import make_env
from wdjax.train.config.reading import convert
from wdjax.train.config.schema import TrainConfig
from wdjax.train.config.warp_drive_settings import (
    MODEL,
    POLICY,
    SAMPLER,
    SAVING,
    SECTIONS,
    TRAINER,
    Section,
    Setting,
    WarpDriveRun,
)
from wdjax.yaml_reader import read_yaml

# WarpDrive's name -> environment of wdjax, and the parameters that its class fixes
ENVS: dict[str, tuple[str, dict[str, object]]] = {
    "tag_continuous": ("tag_continuous", {}),
    "tag_gridworld": ("tag_gridworld", {}),
    "tag_gridworld_with_reset_pool": ("tag_gridworld", {"random_start": True}),
    "single_acrobot": ("acrobot", {}),
    "single_cartpole": ("cartpole", {}),
    "single_continuous_mountain_car": ("continuous_mountain_car", {}),
    "single_mountain_car": ("mountain_car", {}),
    "single_pendulum": ("pendulum", {"gravity": 9.81}),
}
GRIDWORLD_POOL = 5  # starts in the pool of tag_gridworld_with_reset_pool

NOT_IN_DDPG = ("vf_loss_coeff", "entropy_coeff", "clip_param")
BATCHES = 20  # batches in the replay buffer of DDPG, as in the presets of this size


ONLY_DDPG = "only DDPG uses it"
RATES = ("actor", "critic")
ORTHOGONAL = "initial weights are orthogonal, in WarpDrive PyTorch's default"
JAX = "jax selects the device"
NO_TORCH = "must be empty: PyTorch state dicts cannot be read. Use policies.NAME.checkpoint."


def is_warp_drive(values: Mapping[str, object]) -> bool:
    """Return whether a mapping has the structure of a WarpDrive configuration."""
    own = isinstance(values.get("env"), Mapping) or {"trainer", "policy"} <= values.keys()
    return own and "policies" not in values


def read_warp_drive(source: str | Path | Mapping[str, Any]) -> WarpDriveRun | None:
    """Read a run configuration of WarpDrive and report what becomes of each of its settings.

        run = read_warp_drive("warp_drive.yaml")
        for setting in run.settings:
            print(setting.name, setting.value, setting.status, setting.effect)

    `load_config` reads such files, too, and raises an error for settings that are not supported.

    Args:
        source: path of a YAML file, or a mapping with the contents of one.

    Returns:
        The fields for wdjax and the settings. None if it has the structure of another file, and for
        a file named config.yaml: it belongs to a run, whose code is imported only with trust.

    Raises:
        ValueError: for an unknown setting or environment (with the closest name), or a value out
            of range.
        TypeError: for a value of another type.
        OSError: if the file cannot be read.
    """
    values = source if isinstance(source, Mapping) else read_yaml(Path(source))
    of_run = not isinstance(source, Mapping) and Path(source).name == "config.yaml"
    if of_run or not is_warp_drive(values):
        return None
    settings: list[Setting] = []
    run = Section("", values, {name: {} for name in SECTIONS}, settings)
    trainer = Section("trainer", run["trainer"], TRAINER, settings)
    fields, env, params = _environment(run, trainer)
    fields |= _sizes(trainer, Section("saving", run["saving"], SAVING, settings), params)
    sampler = Section("sampler", run["sampler"], {"params": {}}, settings)
    noise = Section("sampler.params", sampler["params"], SAMPLER, settings)
    fields["policies"] = _policies(run["policy"], trainer, noise, env, env.action_space(params))
    settings.sort(key=lambda setting: SECTIONS.index(setting.name.split(".")[0]))
    return WarpDriveRun(fields, tuple(settings))


def _environment(run: Section, trainer: Section) -> tuple[dict[str, Any], Env, Any]:
    """Return (fields of the environment, environment, params)."""
    name = run.given.get("name")
    known = {**ENVS, **{own: (own, {}) for own in (*list_envs(), *[name] * (":" in str(name)))}}
    if not isinstance(name, str) or name not in known:
        words = f"{did_you_mean(str(name), ENVS)} (or a custom environment, package.module:Class)"
        if "_atom_" in str(name):
            words = "its energy tables are not part of wdjax (docs/environments/reaction.md)"
        raise ValueError(f"name = {name!r}: {words}")
    source, fixed = known[name]
    pool = GRIDWORLD_POOL if name == "tag_gridworld_with_reset_pool" else 0
    special = {"reset_pool_size": pool, "seed": None, "env_backend": None}
    given = run["env"]
    own = Section("env", given, {**dict.fromkeys(given), **special}, run.settings)
    fields = run.mapped("name", env=source, env_params=dict(fixed))
    for param, value in own.given.items():
        if param not in special:
            own.mapped(param, env_params={param: value})
            fields["env_params"][param] = value
    if own["reset_pool_size"] > 1:
        fields |= own.mapped("reset_pool_size", reset=own.whole("reset_pool_size"))
    else:
        words = "WarpDrive starts every episode in the same state, as --reset fixed does"
        fields |= own.mapped("reset_pool_size", words, reset="fresh")
    if "seed" in trainer.given:
        own.dropped("seed", "trainer.seed is used")
    elif "seed" in own.given:
        fields |= own.mapped("seed", "the random numbers differ from WarpDrive's", seed=own["seed"])
    own.dropped("env_backend", JAX)
    config = TrainConfig(source, {}, env_params=fields["env_params"])
    return fields, *make_env(config)


def _sizes(trainer: Section, saving: Section, params: Any) -> dict[str, Any]:
    """Return the fields of the sizes of the run, of logging and of saving."""
    envs, batch, episodes = map(trainer.whole, ("num_envs", "train_batch_size", "num_episodes"))
    require(batch >= envs, "trainer.train_batch_size", batch, f"at least num_envs = {envs}")
    length, rollout = int(params.episode_length), batch // envs
    updates = episodes * length // batch
    allowed = f"at least {-(-batch // length)}, for one batch of {batch} steps"
    require(updates > 0, "trainer.num_episodes", episodes, allowed)
    fields = trainer.mapped("num_envs", num_envs=envs)
    fields |= trainer.mapped("train_batch_size", rollout_length=rollout)
    steps, words = updates * envs * rollout, f"{updates:,} updates, as in WarpDrive"
    fields |= trainer.mapped("num_episodes", words, total_env_steps=steps)
    if trainer.whole("num_gpus") > 1:
        words = "must be 1. WarpDrive runs num_envs on each GPU, wdjax divides them. Multiply "
        words += f"num_envs, train_batch_size and num_episodes by {trainer['num_gpus']}."
        trainer.record("num_gpus", "not supported", words)
    else:
        trainer.dropped("num_gpus", "all devices share num_envs; see --devices")
    trainer.dropped("env_backend", JAX)
    if "seed" in trainer.given:
        fields |= trainer.mapped("seed", seed=trainer["seed"])
    every = saving.whole("metrics_log_freq")
    if trainer["evaluator"]:
        fields |= trainer.mapped("evaluator", evaluate_every_updates=every)
    else:
        trainer.dropped("evaluator", "off")
    fields |= saving.mapped("metrics_log_freq", updates_per_chunk=every)
    every = saving.whole("model_params_save_freq")
    fields |= saving.mapped("model_params_save_freq", checkpoint_every_updates=every)
    for name in ("basedir", "name", "tag"):
        saving.dropped(name, "the folder is --workdir, by default runs/FILE")
    saving.dropped("use_wandb", "use --callbacks wandb")
    return fields


def _policies(
    given: Any, trainer: Section, noise: Section, env: Env, space: Any
) -> dict[str, dict[str, Any]]:
    """Return the fields of each policy.

    Args:
        given: the section `policy`.
        trainer: settings of the trainer.
        noise: settings of the sampler.
        env: the environment.
        space: its action space.
    """
    require(isinstance(given, Mapping) and given, "policy", given, "settings by policy")
    groups = dict(env.groups) or {SINGLE_AGENT: 1}
    settings = trainer.settings
    policies = {name: Section(f"policy.{name}", given[name], POLICY, settings) for name in given}
    for own in policies.values():
        require_known(f"{own.path}.algorithm", own["algorithm"], ("A2C", "PPO", "DDPG"))
    explores, samples = _for_algorithms(policies, trainer, noise, space)
    fields: dict[str, dict[str, Any]] = {}
    for name, own in policies.items():
        everyone = len(given) == 1 and list(groups) != [name]
        fields[name] = {"agents": list(groups)} if everyone else {}
        if not everyone and name not in groups:
            words = f"must be named after a group of agents: {' or '.join(groups)}. Rename it."
            settings.append(Setting(own.path, name, "not supported", words))
        fields[name] |= _common(own)
        if own["algorithm"] == "DDPG":
            size = sum(groups.values()) if everyone else groups.get(name, 1)
            fields[name] |= _ddpg(own, trainer["train_batch_size"] * size, space) | explores
        else:
            fields[name] |= _on_policy(own) | samples
    return fields


def _for_algorithms(
    policies: Mapping[str, Section], trainer: Section, noise: Section, space: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields from the sections `trainer` and `sampler` of DDPG, and of A2C and PPO."""
    ddpg = {own["algorithm"] == "DDPG" for own in policies.values()}
    explores, samples = {}, {}
    noise.off("use_argmax", "must be False. Actions are sampled in training.")
    if True in ddpg:
        _, half = _range_of(space)
        explores = trainer.mapped("n_step", n_step=trainer.whole("n_step"))
        units = {"damping": 1.0, "stddev": half}
        for name, unit in units.items():
            if isinstance(noise[name], list):
                noise.record(name, "not supported", "must be a number. scale may be a schedule.")
            else:
                value = convert(float, noise[name], f"{noise.path}.{name}") / unit
                words = f"in units of {unit:g}, half the width of the action space"
                explores |= noise.mapped(name, words * (unit != 1), **{f"noise_{name}": value})
        words = "noise is reset with the episode and clipped to the action space"
        explores |= noise.mapped("scale", words, noise_scale=noise["scale"])
    else:
        for name in ("damping", "stddev", "scale"):
            noise.dropped(name, ONLY_DDPG)
        trainer.dropped("n_step", ONLY_DDPG)
    ratio = convert(float, trainer["neg_pos_env_ratio"], "trainer.neg_pos_env_ratio")
    if ratio > 0 and False in ddpg:
        samples = trainer.mapped("neg_pos_env_ratio", "of A2C, PPO", neg_pos_env_ratio=ratio)
    else:
        trainer.dropped("neg_pos_env_ratio", "off" if ratio <= 0 else "only A2C and PPO use it")
    return explores, samples


def _range_of(space: Any) -> tuple[float, float]:
    """Return the center and half the width of the first Box among spaces by group, or of one."""
    spaces = [space, *getattr(space, "spaces", {}).values()]
    box = next((own for own in spaces if isinstance(own, Box)), Box(-1.0, 1.0))
    low, high = (float(np.ravel(bound)[0]) for bound in (box.low, box.high))
    return (low + high) / 2, (high - low) / 2


def _common(own: Section) -> dict[str, Any]:
    """Return the fields of a policy that all algorithms have."""
    fields = own.mapped("to_train", trainable=own["to_train"])
    fields |= own.mapped("gamma", gamma=own["gamma"])
    limit = own["max_grad_norm"] if own["clip_grad_norm"] else math.inf
    own.dropped("clip_grad_norm", "see max_grad_norm")
    fields |= own.mapped("max_grad_norm", max_grad_norm=limit)
    words = "must be False. normalize_reward divides rewards by the spread of returns."
    own.off("normalize_return", words)
    return fields


def _on_policy(own: Section) -> dict[str, Any]:
    """Return the fields of a policy with A2C or PPO."""
    words = "full returns, and the epsilon of PyTorch's Adam"
    fields = own.mapped(
        "algorithm", words, algorithm=own["algorithm"], gae_lambda=1.0, optimizer_epsilon=1e-8
    )
    fields |= own.mapped("lr", learning_rate=own["lr"])
    fields |= own.mapped("vf_loss_coeff", value_coefficient=own["vf_loss_coeff"])
    fields |= own.mapped("entropy_coeff", entropy_coefficient=own["entropy_coeff"])
    normalized = own["normalize_advantage"]
    words = "over the batch; WarpDrive normalizes each time step" * bool(normalized)
    fields |= own.mapped("normalize_advantage", words, normalize_advantage=normalized)
    if own["algorithm"] == "PPO":
        fields |= own.mapped("clip_param", clip=own["clip_param"])
    else:
        own.dropped("clip_param", "only PPO uses it")
    own.dropped("tau", ONLY_DDPG)
    model = Section(f"{own.path}.model", own["model"], MODEL, own.settings)
    return {**fields, "network": _network(model, "fully_connected", shared_trunk=True)}


def _ddpg(own: Section, batch: int, space: Any) -> dict[str, Any]:
    """Return the fields of a policy with DDPG, which learns from batches of this size."""
    words = f"WarpDrive learns from the newest batch; wdjax draws as many from {BATCHES} batches"
    fields = own.mapped(
        "algorithm", words, algorithm="DDPG", optimizer_epsilon=1e-8, buffer_size=BATCHES * batch,
        batch_size=batch, warmup=batch, uniform_warmup=False, updates_per_rollout=1,
        noise="ornstein_uhlenbeck",
    )  # fmt: skip
    rates = own["lr"] if isinstance(own["lr"], Mapping) else dict.fromkeys(RATES, own["lr"])
    rate = Section(f"{own.path}.lr", rates, dict.fromkeys(RATES, POLICY["lr"]), own.settings)
    fields |= rate.mapped("actor", learning_rate=rate["actor"])
    fields |= rate.mapped("critic", critic_learning_rate=rate["critic"])
    require(own["tau"] is not None, f"{own.path}.tau", None, "a number")
    fields |= own.mapped("tau", tau=own["tau"])
    own.off("normalize_advantage", "must be False with DDPG.")
    for name in NOT_IN_DDPG:
        own.dropped(name, "DDPG does not use it")
    parts: dict[str, Any] = {"actor": {}, "critic": {}, "model_ckpt_filepath": {}}
    model = Section(f"{own.path}.model", own["model"], parts, own.settings)
    kinds = {"actor": "fully_connected_actor", "critic": "fully_connected_action_value_critic"}
    actor, critic = (
        Section(f"{model.path}.{part}", model[part], {**MODEL, "type": kind}, own.settings)
        for part, kind in kinds.items()
    )
    fields["network"] = _network(actor, kinds["actor"])
    others = _network(critic, kinds["critic"])
    if others["hidden_sizes"] != fields["network"]["hidden_sizes"]:
        words = f"must equal the fc_dims of the actor, {actor['fc_dims']}."
        critic.record("fc_dims", "not supported", words)
    output = [float(actor[name]) for name in ("output_b", "output_w")]
    if np.allclose(output, _range_of(space)):
        actor.dropped("output_w", "actions fill the action space")
        actor.dropped("output_b", "actions fill the action space")
    else:
        words = "actions fill the action space: output_b must be {:g}, output_w {:g}."
        actor.record("output_w", "not supported", words.format(*_range_of(space)))
    files = model["model_ckpt_filepath"]
    if any(files.values() if isinstance(files, Mapping) else [files]):
        model.record("model_ckpt_filepath", "not supported", NO_TORCH)
    else:
        model.dropped("model_ckpt_filepath", "off")
    return fields


def _network(model: Section, kind: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a network.

    Args:
        model: settings of the model.
        kind: type of WarpDrive's own model.
        **more: fields that the model fixes.
    """
    fields: dict[str, Any] = {}
    if model["type"] == kind:
        words = "" if model["init_method"] else ORTHOGONAL
        fields |= model.mapped("type", words, network={"activation": "relu", **more})["network"]
    else:
        words = (
            f'must be {kind!r}. Write a custom model as network.encoder, "package.module:Class".'
        )
        model.record("type", "not supported", words)
    require(isinstance(model["fc_dims"], list), f"{model.path}.fc_dims", model["fc_dims"], "a list")
    fields |= model.mapped("fc_dims", network={"hidden_sizes": model["fc_dims"]})["network"]
    if model["init_method"] == "xavier":
        fields |= model.mapped("init_method", network={"initializer": "xavier"})["network"]
    else:
        model.dropped("init_method", ORTHOGONAL)
    model.off("model_ckpt_filepath", NO_TORCH)
    return fields
