"""Settings of jax that affect results are stored with runs and sweeps, and checked on resume."""

import jax
import pytest
import yaml
from refusals import refusal
from tiny_runs import small_config

from wdjax.train import Trainer, load_run
from wdjax.train.storage import switches as module
from wdjax.train.storage.sweep_folder import SWITCHES, hold_sweep
from wdjax.train.storage.switches import REQUIRED, require_same_switches, switch_warnings, switches

pytestmark = pytest.mark.usefixtures("quick_compile")

OTHER = {
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_enable_x64": True,
}
LONGER = small_config(total_env_steps=7 * 128)


@pytest.fixture
def current(monkeypatch):
    """Return the settings of this process, which tests may change."""
    settings = switches()
    monkeypatch.setattr(module, "switches", lambda: settings)
    return settings


def test_switches_returns_the_current_settings(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--b=1 --xla_gpu_deterministic_ops=true --a=2")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with jax.threefry_partitionable(False), jax.default_prng_impl("rbg"):
        settings = switches()
    assert (settings["jax_threefry_partitionable"], settings["jax_default_prng_impl"]) == (
        False,
        "rbg",
    )
    assert (settings["XLA_FLAGS"], settings["NVIDIA_TF32_OVERRIDE"]) == ("--a=2 --b=1", "0")
    assert yaml.safe_load(yaml.safe_dump(settings)) == settings


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUIRED)
def test_resuming_with_another_setting_raises(name, run, current):
    before, old = {path: path.stat().st_mtime_ns for path in run.rglob("*")}, current[name]
    current[name] = OTHER[name]
    message = refusal(Trainer, LONGER, run, resume=True, quiet=True)
    words = f"the run in {run} was started with {old!r}. Set {name.upper()}={old}"
    assert f"{name} = {OTHER[name]!r}: {words}" in message
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.slow
def test_loading_with_another_key_type_raises(run, current):
    current["jax_enable_x64"] = True  # allowed for loading
    load_run(run)
    current["jax_default_prng_impl"] = "rbg"
    assert refusal(load_run, run).startswith("jax_default_prng_impl = 'rbg': the run in")


@pytest.mark.slow
def test_settings_that_affect_rounding_warn_once(run, current, capsys):
    current |= {
        "jax_default_matmul_precision": "highest",
        "XLA_FLAGS": "--a=2",
        "NVIDIA_TF32_OVERRIDE": "0",
    }
    Trainer(LONGER, run, resume=True).train()
    output = " ".join(capsys.readouterr().out.split())
    assert output.count("results are not bit-identical") == 3
    assert "Warning: XLA_FLAGS = '--a=2', was " in output


@pytest.mark.slow
def test_run_without_stored_settings_resumes(run, current):
    """wdjax 0.2.0 wrote such runs."""
    values = yaml.safe_load((run / "config.yaml").read_text())
    for name in current:
        del values["made_with"][name]
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    current["jax_threefry_partitionable"] = False
    Trainer(LONGER, run, resume=True, quiet=True)
    for stored in (None, {}, "damaged", values["made_with"]):
        require_same_switches(stored, "it")
        assert switch_warnings(stored) == []


def test_resuming_a_sweep_with_another_setting_raises(tmp_path, current):
    warnings = []
    with hold_sweep(tmp_path, {"mode": "grid"}, False, warnings.append):
        pass
    assert yaml.safe_load((tmp_path / SWITCHES).read_text()) == switches()
    current["NVIDIA_TF32_OVERRIDE"] = "0"
    with hold_sweep(tmp_path, {"mode": "grid"}, True, warnings.append):
        pass
    assert [warning.split(" = ")[0] for warning in warnings] == ["Warning: NVIDIA_TF32_OVERRIDE"]
    current["jax_default_prng_impl"] = "rbg"
    with pytest.raises(ValueError, match="jax_default_prng_impl = 'rbg': the sweep in"):
        hold_sweep(tmp_path, {"mode": "grid"}, True, warnings.append).__enter__()
    (tmp_path / SWITCHES).unlink()  # as written by wdjax 0.2.0
    with hold_sweep(tmp_path, {"mode": "grid"}, True, warnings.append):
        pass
