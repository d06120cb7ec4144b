"""Fixtures of the tests of experiments."""

import json

import jax
import pytest
from probes import PROBES

from wdjax import envs
from wdjax.train.population import programs


@pytest.fixture(scope="module")
def registered_probes():
    """Register the probe environments by name."""
    with pytest.MonkeyPatch.context() as patch:
        for name, cls in PROBES.items():
            patch.setitem(envs._REGISTRY, name, cls)
        yield


@pytest.fixture
def in_this_process():
    """Return a replacement of `in_new_process`, without the seconds that imports take."""

    def call(function, *arguments, variables=None):
        return json.loads(json.dumps(function(*json.loads(json.dumps(arguments)))))

    return call


@pytest.fixture(scope="module")
def compiled_once():
    """Compile programs once for all sweeps of a module; their configurations differ in the key."""
    compiled, compile_members = {}, programs.compile_members

    def compile_once(setup, states, num_updates, num_devices=1):
        config = setup.config
        sizes = config.policies["agent"].network.hidden_sizes
        schedules = tuple(leaf.shape for leaf in jax.tree.leaves(states.hypers))
        which = (
            sizes,
            schedules,
            config.on_bad_numbers,
            states.num_updates.shape,
            num_updates,
            num_devices,
        )
        if which not in compiled:
            compiled[which] = compile_members(setup, states, num_updates, num_devices)
        return compiled[which]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "compile_members", compile_once)
        yield
