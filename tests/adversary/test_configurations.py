"""Generated configurations are equal, or rejected, in YAML, flags and Python.

Accepted ones train, save, resume and are read back unchanged. Values are inside the allowed range,
at its limits and just outside. `--hypothesis-profile=explore` draws more.
"""

import copy
import dataclasses
import functools
import json
import math
import re
import typing
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import jax
import pytest
import yaml
from hypothesis import given

from wdjax.experiments.cli import main
from wdjax.experiments.commands.train import of_preset, with_flags
from wdjax.train import Trainer, load_config
from wdjax.train.config.env_params import complete_env_params
from wdjax.train.config.facts import is_scheduled, leaves
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.state.registry import read_config
from wdjax.train.storage.folder import load_run_config, plain_config

PRESETS = Path(__file__).parent / "presets"
# preset -> one of its policies
POLICIES = {"ppo": "agent", "a2c": "agent", "ddpg": "agent", "tag": "runner"}
FEW = hypothesis.settings(max_examples=hypothesis.settings.default.max_examples // 2)
SENTENCE = re.compile(r"[^\n]{8,}")
# Fields that other tests draw, or with names that depend on the preset.
LEFT_OUT = (
    "agents",
    "checkpoint",
    "opponents",
    "options",
    "network.encoder_options",
    "network.encoder",
    "algorithm",
)
INTEGERS = st.sampled_from([0, 1, 2, 3, 4, 7, 8, 16, 32, -1, 2**31 - 1, 2**31, 2**32])
FLOATS = st.sampled_from(
    [0.0, 0.1, 0.5, 0.999, 1.0, 1.0000001, 2.5, 1e-8, 1e8, 3.5e38, -0.1, math.inf, math.nan]
)
SMALL = {
    "num_envs": [1, 2, 3, 4, 6, 8],
    "rollout_length": [1, 2, 5, 8],
    "total_env_steps": [1, 8, 31, 32, 33, 64],
}


def hints(cls, path=""):
    """Yield (dotted name, type, field) of all fields of a dataclass, recursively."""
    types = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(types[field.name]):
            yield from hints(types[field.name], f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", types[field.name], field


def values_of(hint, field):
    """Return a strategy for values of a field's type, allowed or not."""
    if is_scheduled(field):
        points = st.tuples(st.sampled_from([0.0, 32.0, 64.0, 1e9, -1.0]), FLOATS)
        return FLOATS | st.lists(points, min_size=1, max_size=3).map(
            lambda pairs: [list(pair) for pair in pairs]
        )
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from([*typing.get_args(hint), "nothing"])
    if hint is bool:
        return st.booleans()
    if typing.get_origin(hint) is tuple:
        return st.lists(st.sampled_from([1, 2, 4, 0, -1]), min_size=1, max_size=3)
    if hint is int:
        return st.sampled_from(SMALL[field.name]) | INTEGERS if field.name in SMALL else INTEGERS
    return FLOATS if hint is float else None


FIELDS = {
    **{
        name: values_of(hint, field)
        for name, hint, field in hints(TrainConfig)
        if name not in ("env", "policies")
    },
    **{
        f"POLICY.{name}": values_of(hint, field)
        for name, hint, field in hints(PolicyConfig)
        if name not in LEFT_OUT
    },
}
FIELDS |= {
    "reset": st.sampled_from(["fresh", "fixed", "frsh"]) | INTEGERS,
    "best_metric": st.sampled_from(
        ["auto", "none", "agent/episode_return", "runner/episode_return", "agent/x"]
    ),
    "stop_at": st.tuples(st.sampled_from(["POLICY/episode_return", "runner/x"]), FLOATS).map(
        lambda goal: dict([goal])
    ),
}
FIELDS = {name: strategy for name, strategy in FIELDS.items() if strategy is not None}


def fields_of(preset):
    """Return dotted field -> strategy for a run of a preset and the options of its algorithm."""
    options = load_config(PRESETS / f"{preset}.yaml").policies[POLICIES[preset]].options
    values = {f"POLICY.{n}": values_of(hint, field) for n, hint, field in hints(type(options))}
    return FIELDS | {name: strategy for name, strategy in values.items() if strategy is not None}


FIELDS_OF = {preset: fields_of(preset) for preset in POLICIES}


@st.composite
def configurations(draw, most=3):
    """Draw (preset, dotted field -> value)."""
    preset = draw(st.sampled_from(list(POLICIES)))
    fields = FIELDS_OF[preset]
    names = draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=most, unique=True))
    changes = {name: draw(fields[name]) for name in names}
    text = json.dumps(changes).replace("POLICY.", f"policies.{POLICIES[preset]}.")
    return preset, json.loads(text.replace("POLICY", POLICIES[preset]))


def as_yaml(preset, changes, folder):
    raw = yaml.safe_load((PRESETS / f"{preset}.yaml").read_text())
    for name, value in changes.items():
        *path, last = name.split(".")
        functools.reduce(lambda inside, key: inside.setdefault(key, {}), path, raw)[last] = value
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(copy.deepcopy(raw)))
    return load_config(file)


def flags_of(changes):
    """Return command line arguments for changes."""
    arguments = []
    for name, value in changes.items():
        arguments.append(f"--{name.replace('_', '-')}")
        if isinstance(value, dict):
            arguments += [str(part) for pair in value.items() for part in pair]
        elif isinstance(value, list):
            arguments += [
                str(part) for item in value for part in (item if isinstance(item, list) else [item])
            ]
        else:
            arguments.append(str(value))
    return arguments


def as_flags(preset, changes):
    words = flags_of(changes)
    raw, default = of_preset(str(PRESETS / f"{preset}.yaml"), words)
    return read_config(with_flags(preset, raw, default, words).config)


def outcome(function, *arguments, **named):
    """Return a configuration as plain values, or None if it is rejected with a clear error."""
    try:
        return plain_config(complete_env_params(function(*arguments, **named)))
    except (ValueError, TypeError, OSError) as error:
        check_error(error)
        return None


def check_error(error):
    """Check that an error is one line for users."""
    assert SENTENCE.fullmatch(str(error)), repr(error)
    assert not any(
        sign in str(error)
        for sign in ("object has no attribute", "not subscriptable", "unhashable")
    )


def same(one, other):
    # NaN equals NaN in JSON
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.slow
@FEW
@given(configurations())
def test_yaml_flags_and_python_agree(tmp_path_factory, drawn):
    preset, changes = drawn
    folder = tmp_path_factory.mktemp("preset")
    python = outcome(load_config, PRESETS / f"{preset}.yaml", **changes)
    hypothesis.event("taken" if python else "refused")
    assert same(outcome(as_yaml, preset, changes, folder), python)
    assert same(outcome(as_flags, preset, changes), python)


@FEW
@given(configurations())
def test_config_yaml_round_trips(tmp_path_factory, drawn):
    preset, changes = drawn
    try:
        config = load_config(PRESETS / f"{preset}.yaml", **changes)
    except (ValueError, TypeError):
        return
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_text(yaml.safe_dump(plain_config(config), sort_keys=False))
    assert same(plain_config(load_run_config(folder)), plain_config(config))
    assert [name for name, _, _ in leaves(load_run_config(folder))] == [
        name for name, _, _ in leaves(config)
    ]


def is_small(config):
    """Return whether one update of a configuration takes milliseconds."""
    sizes = [config.num_envs * config.rollout_length, config.eval_episodes, config.rollout_unroll]
    for policy in config.policies.values():
        sizes += [*policy.network.hidden_sizes, policy.network.recurrent_size, policy.past_selves]
        options = dataclasses.asdict(policy.options)
        names = ("epochs", "updates_per_rollout", "n_step", "batch_size")
        sizes += [options.get(name, 0) for name in names]
        sizes.append(options.get("buffer_size", 0) / 1000)
    return (
        max(sizes) <= 256
        and config.devices in (0, 1, 2)
        and (isinstance(config.reset, str) or config.reset <= 100)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compile")
@hypothesis.settings(
    max_examples=hypothesis.settings.default.max_examples // 16,
    # without shrinking, which takes minutes
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
@given(configurations(most=6))
def test_accepted_configurations_train_resume_and_round_trip(tmp_path_factory, drawn):
    preset, changes = drawn
    try:
        config = load_config(PRESETS / f"{preset}.yaml", **changes)
    except (ValueError, TypeError):
        hypothesis.assume(False)
    hypothesis.assume(is_small(config))
    folder, lengths = (
        tmp_path_factory.mktemp("run"),
        [config.env_steps_per_update, 2 * config.env_steps_per_update],
    )
    ended = []
    for resume, steps in enumerate(lengths):
        longer = dataclasses.replace(config, total_env_steps=steps)
        try:
            trainer = Trainer(longer, folder, resume=bool(resume), quiet=True, pictures=False)
            trainer.train()
        # errors that only the learner finds, before any file is written
        except (ValueError, TypeError) as error:
            check_error(error)
            assert not list(folder.iterdir())
            return
        except ArithmeticError as error:  # non-finite numbers, with a one-line error
            ended.append(error)
            check_error(error)
            break
        read = plain_config(complete_env_params(load_run_config(folder)))
        assert same(
            read | {"updates_per_chunk": 0},
            plain_config(complete_env_params(longer)) | {"updates_per_chunk": 0},
        )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in rows] == [1, 2][: len(rows)]
    assert ended or trainer.ended_by or len(rows) == 2
    jax.clear_caches()


def test_dry_run_rejects_invalid_configurations(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["train", str(PRESETS / "ppo.yaml"), "--dry-run", "--num-blocks", "3"])
    assert ended.value.code == 2
    assert "num_blocks = 3: must be a divisor of num_envs = 4" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
