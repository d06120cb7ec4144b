"""WarpDrive's run configurations as configurations of wdjax, with a report of every setting.

Source: salesforce/warp-drive 2.7.1 (bac017e): warp_drive/training/run_configs,
warp_drive/training/trainers, and the scripts that assign agents to policies.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from wdjax.checks import require, require_bool, require_integer, require_known
from wdjax.env import SINGLE_AGENT, Env
from wdjax.envs import list_envs
from wdjax.tables import brief
from wdjax.train.config.env_params import make_env
from wdjax.train.config.reading import convert, set_dotted
from wdjax.train.config.schema import TrainConfig
from wdjax.yaml_reader import read_yaml

# Settings of each section, with the values of default_configs.yaml. None: no default.
DEFAULTS: dict[str, dict[str, Any]] = {
    "": {"name": "", "env": {}, "trainer": {}, "sampler": {}, "saving": {}, "policy": {}},
    "trainer": {
        "num_envs": 10, "train_batch_size": 10_000, "num_episodes": 10_000, "num_gpus": 1,
        "env_backend": "pycuda", "seed": None, "n_step": 1, "neg_pos_env_ratio": -1.0,
        "evaluator": False,
    },
    "sampler": {"params": {}},
    "params": {"damping": 0.15, "stddev": 0.2, "scale": 1.0, "use_argmax": False},
    "saving": {
        "metrics_log_freq": 100, "model_params_save_freq": 1_000, "basedir": None, "name": None,
        "tag": None, "use_wandb": False,
    },
    "policy": {
        "to_train": False, "algorithm": "A2C", "gamma": 0.98, "clip_grad_norm": True,
        "max_grad_norm": 0.5, "lr": 1e-4, "vf_loss_coeff": 0.01, "entropy_coeff": 0.05,
        "normalize_advantage": False, "normalize_return": False, "clip_param": 0.01, "tau": None,
        "model": {},
    },
    "lr": {"actor": 1e-4, "critic": 1e-4},
    "model": {
        "type": "fully_connected", "fc_dims": [64, 64], "init_method": None,
        "model_ckpt_filepath": "", "output_w": 1.0, "output_b": 0.0,
    },
}  # fmt: skip
SCHEDULED = ("lr", "actor", "critic", "vf_loss_coeff", "entropy_coeff", "scale")

# WarpDrive's name -> environment of wdjax, the fields that its class fixes, and starts in its pool
ENVS: dict[str, tuple[str, dict[str, object], int]] = {
    "tag_gridworld_with_reset_pool": ("tag_gridworld", {"env_params.random_start": True}, 5),
    "single_acrobot": ("acrobot", {}, 0),
    "single_cartpole": ("cartpole", {}, 0),
    "single_continuous_mountain_car": ("continuous_mountain_car", {}, 0),
    "single_mountain_car": ("mountain_car", {}, 0),
    "single_pendulum": ("pendulum", {"env_params.gravity": 9.81}, 0),
}
BATCHES = 20  # batches in the replay buffer of DDPG, as in the presets of this size

# Settings that only change their name, for all algorithms, and for A2C and PPO
RENAMED = {
    "num_envs": "num_envs", "metrics_log_freq": "updates_per_chunk",
    "model_params_save_freq": "checkpoint_every_updates", "to_train": "trainable",
    "gamma": "gamma", "fc_dims": "network.hidden_sizes",
}  # fmt: skip
ON_POLICY = {
    "lr": "learning_rate", "vf_loss_coeff": "value_coefficient",
    "entropy_coeff": "entropy_coefficient",
}  # fmt: skip

# Settings that must have their default, or be empty
FIXED = {
    "num_gpus": "must be 1. WarpDrive runs num_envs on each GPU, wdjax divides them. Multiply "
    "num_envs, train_batch_size and num_episodes by the number of GPUs.",
    "use_argmax": "must be False. Actions are sampled in training.",
    "normalize_return": "must be False. normalize_reward divides rewards by the spread of returns.",
    "model_ckpt_filepath": "must be empty: PyTorch state dicts cannot be read. Use "
    "policies.NAME.checkpoint.",
}
# Settings that are dropped, unless they are mapped or not supported
ONLY_DDPG, ONLY_A2C = "only DDPG uses it", "only A2C and PPO use it"
FOLDER, FILLED = "the folder is --workdir, by default runs/FILE", "actions fill the action space"
ORTHOGONAL = "initial weights are orthogonal, in WarpDrive PyTorch's default"
DROPPED = {
    "env_backend": "jax selects the device", "num_gpus": "see --devices", "evaluator": "off",
    "seed": "off, or trainer.seed is used", "n_step": ONLY_DDPG, "tau": ONLY_DDPG,
    "damping": ONLY_DDPG, "stddev": ONLY_DDPG, "scale": ONLY_DDPG, "vf_loss_coeff": ONLY_A2C,
    "entropy_coeff": ONLY_A2C,
    "neg_pos_env_ratio": f"off, or {ONLY_A2C}", "clip_param": "only PPO uses it",
    "clip_grad_norm": "see max_grad_norm", "use_wandb": "use --callbacks wandb",
    "use_argmax": "off", "normalize_advantage": "off", "normalize_return": "off",
    "model_ckpt_filepath": "off", "init_method": ORTHOGONAL, "output_w": FILLED,
    "output_b": FILLED, "basedir": FOLDER, "name": FOLDER, "tag": FOLDER,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting of a WarpDrive configuration and its effect in wdjax."""

    name: str
    """Dotted name in the file."""
    value: Any
    """Value in the file, or WarpDrive's default."""
    status: Literal["mapped", "dropped", "not supported"]
    """mapped: to fields of wdjax. dropped: without effect on learning. not supported: dropping it
    would change the results, so that `load_config` raises an error."""
    effect: str
    """The fields of wdjax and their values, or the reason."""
    is_default: bool
    """Whether the file does not contain the setting, and WarpDrive's default applies."""


@dataclasses.dataclass(frozen=True)
class WarpDriveRun:
    """A WarpDrive configuration in wdjax."""

    fields: dict[str, Any]
    """Fields of `TrainConfig`, for `load_config`."""
    settings: tuple[Setting, ...]
    """All settings of the file, and the defaults of WarpDrive that apply."""

    def require_supported(self) -> None:
        """Raise ValueError, with all of them, if settings are not supported."""
        wrong = [own for own in self.settings if own.status == "not supported"]
        words = " ".join(f"{own.name} = {own.value!r}: {own.effect}" for own in wrong)
        if wrong:
            raise ValueError(f"settings of WarpDrive that wdjax does not support: {words}")


class Section:
    """Settings of one section, checked and recorded.

    Those in RENAMED are mapped. The others are dropped, until `mapped` or `supported` changes it.
    """

    def __init__(
        self, path: str, given: Any, defaults: Mapping[str, Any], fields: dict[str, Any],
        settings: dict[str, Setting], any_name: bool = False,
    ):  # fmt: skip
        """Check and record the settings.

        Args:
            path: dotted name of the section.
            given: settings of the file.
            defaults: settings of WarpDrive.
            fields: fields of wdjax, to be filled.
            settings: all settings by dotted name, to be filled.
            any_name: whether the section may have settings without a default.
        """
        require(isinstance(given, Mapping), path, given, "a mapping of settings", TypeError)
        self.path, self.given, self.fields, self.settings = path, given, fields, settings
        self.values = {**defaults, **given}
        for name, value in self.values.items():
            default, where = defaults.get(name), self.path_of(name)
            if not any_name:
                require_known(f"setting{f' of {path}' * bool(path)}", name, defaults)
            if isinstance(default, bool):
                require_bool(where, value)
            elif isinstance(default, int):
                require_integer(where, value, min(default, 1))
            elif isinstance(default, list):
                require(isinstance(value, list), where, value, "a list", TypeError)
            elif isinstance(default, float) and not (
                name in SCHEDULED and isinstance(value, list | Mapping)
            ):
                self.values[name] = convert(float, value, where)
            self.record(name, "dropped", DROPPED.get(name, ""))
            if name in RENAMED and not any_name:
                self.mapped(name, **{RENAMED[name]: self[name]})
            if name in FIXED:
                empty = isinstance(value, Mapping) and not any(value.values())
                self.supported(name, value in (default, None) or empty, FIXED[name])

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def path_of(self, name: str) -> str:
        return f"{self.path}.{name}".lstrip(".")

    def section(self, name: str, **changes: Any) -> "Section":
        """Return the settings inside a setting, which fill the same fields unless changed."""
        path = self.path_of(name)
        del self.settings[path]
        shared = {"fields": self.fields, "settings": self.settings}
        return Section(path, self[name], **{"defaults": DEFAULTS.get(name), **shared, **changes})

    def record(self, name: str, status: Any, effect: str) -> None:
        path = self.path_of(name)
        self.settings[path] = Setting(path, self[name], status, effect, name not in self.given)

    def mapped(
        self, setting: str, note: str = "", to: Self | None = None, /, **fields: Any
    ) -> None:
        """Set fields, by dotted name, of this section or of another one."""
        for name, value in fields.items():
            set_dotted((to or self).fields, name, value)
        words = ", ".join(f"{name}: {brief(value)}" for name, value in fields.items())
        self.record(setting, "mapped", f"{words}; {note}" if note else words)

    def supported(self, name: str, condition: object, words: Any) -> None:
        """Record that a setting is not supported if the condition is false."""
        if not condition:
            self.record(name, "not supported", words)


def read_warp_drive(source: str | Path | Mapping[str, Any]) -> WarpDriveRun | None:
    """Read a run configuration of WarpDrive and report what becomes of each of its settings.

    For example::

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
    other = not isinstance(values.get("env"), Mapping) and not {"trainer", "policy"} <= {*values}
    if of_run or other or "policies" in values:
        return None
    run = Section("", values, DEFAULTS[""], {}, {})
    trainer = run.section("trainer")
    env, params = _environment(run, trainer)
    _sizes(trainer, params)
    saving = run.section("saving")
    if trainer["evaluator"]:
        trainer.mapped("evaluator", evaluate_every_updates=saving["metrics_log_freq"])
    _policies(run, trainer, env, env.action_space(params))
    applied = (
        own for own in run.settings.values() if own.status != "dropped" or not own.is_default
    )
    return WarpDriveRun(run.fields, tuple(applied))


def _environment(run: Section, trainer: Section) -> tuple[Env, Any]:
    """Fill the fields of the environment and return (environment, params)."""
    name = run["name"]
    words = "another one. Its energy tables are not part of wdjax (docs/environments/reaction.md)"
    require("_atom_" not in str(name), "name", name, words)
    if ":" not in str(name):
        require_known("environment name", name, {*ENVS, *list_envs()})
    source, fixed, pool = ENVS.get(name, (name, {}, 0))
    special = {"reset_pool_size": pool, "seed": None, "env_backend": None}
    own = run.section("env", defaults=special, any_name=True)
    run.mapped("name", env=source, **fixed)
    for param in (param for param in own.given if param not in special):
        own.mapped(param, **{f"env_params.{param}": own[param]})
    fresh = own["reset_pool_size"] < 2
    words = "WarpDrive starts every episode in the same state, as --reset fixed does" * fresh
    own.mapped("reset_pool_size", words, reset="fresh" if fresh else own["reset_pool_size"])
    seeded = own if trainer["seed"] is None else trainer
    if seeded["seed"] is not None:
        seeded.mapped("seed", "the random numbers differ from WarpDrive's", seed=seeded["seed"])
    return make_env(TrainConfig(source, {}, env_params=run.fields.get("env_params", {})))


def _sizes(trainer: Section, params: Any) -> None:
    """Fill the fields of the sizes of the run."""
    envs, batch, episodes = (trainer[n] for n in ("num_envs", "train_batch_size", "num_episodes"))
    require(batch >= envs, "trainer.train_batch_size", batch, f"at least num_envs = {envs}")
    length = int(getattr(params, "episode_length", 0))
    require(length > 0, "env.episode_length", length, "above 0, as a parameter of the environment")
    updates, rollout = episodes * length // batch, batch // envs
    allowed = f"at least {-(-batch // length)}, for one batch of {batch} steps"
    require(updates > 0, "trainer.num_episodes", episodes, allowed)
    trainer.mapped("train_batch_size", rollout_length=rollout)
    steps = updates * envs * rollout
    trainer.mapped("num_episodes", f"{updates:,} updates, as in WarpDrive", total_env_steps=steps)


def _policies(run: Section, trainer: Section, env: Env, space: Any) -> None:
    """Fill the fields of each policy.

    Args:
        run: the file.
        trainer: settings of the trainer.
        env: the environment.
        space: its action space.
    """
    noise = run.section("sampler").section("params")
    policies = run.section("policy", defaults={}, any_name=True)
    require(policies.given, "policy", policies.given, "a mapping with at least one policy")
    groups = dict(env.groups) or {SINGLE_AGENT: 1}
    for name in policies.given:
        own = policies.section(name, defaults=DEFAULTS["policy"], fields={})
        run.fields.setdefault("policies", {})[name] = own.fields
        agents = list(groups) if len(policies.given) == 1 else [name]
        if agents != [name]:
            own.fields["agents"] = agents
        require_known("policy", agents[0], groups)
        require_known(own.path_of("algorithm"), own["algorithm"], ("A2C", "PPO", "DDPG"))
        limit = own["max_grad_norm"] if own["clip_grad_norm"] else math.inf
        own.mapped("max_grad_norm", max_grad_norm=limit)
        if own["algorithm"] == "DDPG":
            batch = trainer["train_batch_size"] * sum(groups.get(group, 0) for group in agents)
            _ddpg(own, trainer, noise, batch, getattr(space, "spaces", {}).get(agents[0], space))
        else:
            _on_policy(own, trainer)


def _on_policy(own: Section, trainer: Section) -> None:
    """Fill the fields of a policy with A2C or PPO."""
    words = "full returns, and the epsilon of PyTorch's Adam"
    options = {"gae_lambda": 1.0, "optimizer_epsilon": 1e-8}
    own.mapped("algorithm", words, algorithm=own["algorithm"], **options)
    for name, field in ON_POLICY.items():
        own.mapped(name, **{field: own[name]})
    normalized = own["normalize_advantage"]
    words = "over the batch; WarpDrive normalizes each time step" * normalized
    own.mapped("normalize_advantage", words, normalize_advantage=normalized)
    if own["algorithm"] == "PPO":
        own.mapped("clip_param", clip=own["clip_param"])
    ratio = trainer["neg_pos_env_ratio"]
    if ratio > 0:
        trainer.mapped("neg_pos_env_ratio", "of A2C, PPO", own, neg_pos_env_ratio=ratio)
    _network(own.section("model"), "fully_connected", shared_trunk=True)


def _ddpg(own: Section, trainer: Section, noise: Section, batch: int, space: Any) -> None:
    """Fill the fields of a policy with DDPG, which learns from batches of this size."""
    words = f"WarpDrive learns from the newest batch; wdjax draws as many from {BATCHES} batches"
    own.mapped(
        "algorithm", words, algorithm="DDPG", optimizer_epsilon=1e-8, buffer_size=BATCHES * batch,
        batch_size=batch, warmup=batch, uniform_warmup=False, updates_per_rollout=1,
        noise="ornstein_uhlenbeck",
    )  # fmt: skip
    if isinstance(own["lr"], Mapping):
        rate = own.section("lr")
        rate.mapped("actor", learning_rate=rate["actor"])
        rate.mapped("critic", critic_learning_rate=rate["critic"])
    else:
        own.mapped("lr", learning_rate=own["lr"], critic_learning_rate=own["lr"])
    own.mapped("tau", tau=convert(float, own["tau"], own.path_of("tau")))
    own.supported("normalize_advantage", not own["normalize_advantage"], "must be False with DDPG.")
    trainer.mapped("n_step", "", own, n_step=trainer["n_step"])
    center, half = _range_of(space)
    noise.mapped("damping", "", own, noise_damping=noise["damping"])
    words = f"in units of {half:g}, half the width of the action space" * (half != 1)
    noise.mapped("stddev", words, own, noise_stddev=noise["stddev"] / half)
    words = "noise is reset with the episode and clipped to the action space"
    noise.mapped("scale", words, own, noise_scale=noise["scale"])
    model = own.section("model", defaults={"critic": {}, "actor": {}, "model_ckpt_filepath": ""})
    kinds = {"critic": "fully_connected_action_value_critic", "actor": "fully_connected_actor"}
    critic, actor = (
        _network(model.section(part, defaults={**DEFAULTS["model"], "type": kind}), kind)
        for part, kind in kinds.items()
    )
    for name in ("fc_dims", "init_method"):
        words = f"must be {actor[name]}, as for the actor."
        critic.supported(name, critic[name] == actor[name], words)
    fills = np.allclose([actor["output_b"], actor["output_w"]], [center, half])
    words = f"{FILLED}: output_b must be {center:g}, output_w {half:g}."
    actor.supported("output_w", fills, words)


def _network(model: Section, kind: str, **more: Any) -> Section:
    """Fill the fields of a network and return its settings.

    Args:
        model: settings of the model.
        kind: type of WarpDrive's own model.
        **more: fields that the model fixes.
    """
    fields = {f"network.{name}": value for name, value in {"activation": "relu", **more}.items()}
    model.mapped("type", "" if model["init_method"] else ORTHOGONAL, **fields)
    words = f'must be {kind!r}. Write a custom model as network.encoder, "package.module:Class".'
    model.supported("type", model["type"] == kind, words)
    if model["init_method"] == "xavier":
        model.mapped("init_method", **{"network.initializer": "xavier"})
    return model


def _range_of(space: Any) -> tuple[float, float]:
    """Return the center and half the width of a Box, or of (-1, 1)."""
    low, high = (float(np.ravel(getattr(space, *own))[0]) for own in (("low", -1), ("high", 1)))
    return (low + high) / 2, (high - low) / 2
