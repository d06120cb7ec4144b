"""Settings of WarpDrive's run configurations: their sections, defaults and effects in wdjax.

Source: salesforce/warp-drive 2.7.1 (bac017e), warp_drive/training/run_configs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from wdjax.checks import did_you_mean, require, require_integer
from wdjax.tables import brief, html_table
from wdjax.train.config.reading import convert
from wdjax.yaml_reader import flat

# Settings of each section, with the values of default_configs.yaml. None: no default.
SECTIONS = ("name", "env", "trainer", "policy", "sampler", "saving")
TRAINER = {
    "num_envs": 10, "num_episodes": 10_000, "train_batch_size": 10_000, "num_gpus": 1,
    "env_backend": "pycuda", "seed": None, "n_step": 1, "neg_pos_env_ratio": -1,
    "evaluator": False,
}  # fmt: skip
POLICY = {
    "to_train": False, "algorithm": "A2C", "vf_loss_coeff": 0.01, "entropy_coeff": 0.05,
    "clip_grad_norm": True, "max_grad_norm": 0.5, "normalize_advantage": False,
    "normalize_return": False, "clip_param": 0.01, "gamma": 0.98, "tau": None, "lr": 1e-4,
    "model": {},
}  # fmt: skip
MODEL = {
    "type": "fully_connected", "fc_dims": [64, 64], "model_ckpt_filepath": "", "output_w": 1.0,
    "output_b": 0.0, "init_method": None,
}  # fmt: skip
SAMPLER = {"damping": 0.15, "stddev": 0.2, "scale": 1.0, "use_argmax": False}
SAVING = {
    "metrics_log_freq": 100, "model_params_save_freq": 1_000, "basedir": None, "name": None,
    "tag": None, "use_wandb": False,
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
    is_default: bool = False
    """Whether the file does not contain the setting, and WarpDrive's default applies."""

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Name, value, status and effect as text."""
        value = f"{brief(self.value)}{' (default)' * self.is_default}"
        return self.name, value, self.status, self.effect


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

    def _repr_html_(self) -> str:
        rows = [setting.row for setting in self.settings]
        return html_table(rows, ("setting", "value", "status", "wdjax"), "WarpDrive configuration")


class Section:
    """Settings of one section. Each use of a setting is recorded."""

    def __init__(self, path: str, given: Any, defaults: dict[str, Any], settings: list[Setting]):
        require(isinstance(given, Mapping), path, given, "a mapping of settings", TypeError)
        for name in given:
            if name not in defaults:
                where = f"{path}.{name}".lstrip(".")
                raise ValueError(f"unknown setting {where}: {did_you_mean(str(name), defaults)}")
        self.path, self.given, self.settings = path, given, settings
        self.values = {**defaults, **given}

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def whole(self, name: str) -> int:
        """Return a count; raise an error that names the setting for other values."""
        value = convert(int, self[name], f"{self.path}.{name}")
        require_integer(f"{self.path}.{name}", value, 1)
        return value

    def record(self, name: str, status: Any, effect: str) -> None:
        path = f"{self.path}.{name}".lstrip(".")
        self.settings.append(Setting(path, self[name], status, effect, name not in self.given))

    def mapped(self, setting: str, note: str = "", /, **fields: Any) -> dict[str, Any]:
        """Record and return the fields that a setting becomes."""
        words = ", ".join(f"{name}: {brief(value)}" for name, value in flat(fields).items())
        self.record(setting, "mapped", f"{words}; {note}" if note else words)
        return fields

    def dropped(self, setting: str, reason: str) -> None:
        """Record a setting of the file without effect in wdjax."""
        if setting in self.given:
            self.record(setting, "dropped", reason)

    def off(self, setting: str, reason: str) -> None:
        """Record a setting that wdjax supports only if it is off."""
        if self[setting]:
            self.record(setting, "not supported", reason)
        else:
            self.dropped(setting, "off")
