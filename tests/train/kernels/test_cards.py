"""Updates lower for four GPUs, and runs report their kernels. No GPU is needed."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import CARDS, kernels_in, lowered

import wdjax
from wdjax.kernels import pallas, support
from wdjax.kernels.support import listening
from wdjax.train import Trainer, load_config, make_learner
from wdjax.train.algorithms.ppo import PPO
from wdjax.train.host import programs
from wdjax.train.host.programs import compile_and_init, lower_chunk, telling, words_of_kernels
from wdjax.train.learner.init import abstract_state

SMALL = {"num_envs": 16, "rollout_length": 4, "devices": 1, "num_blocks": 1}
FEW = {
    "env_params.num_taggers": 2,
    "env_params.num_runners": 6,
    "env_params.num_other_agents_observed": 3,
}
HIDDEN = {f"policies.{name}.network.hidden_sizes": [256, 256] for name in ("tagger", "runner")}
STREAMED = {
    f"policies.{name}.network.{field}": value
    for name in ("tagger", "runner")
    for field, value in (("hidden_sizes", [64, 64]), ("shared_trunk", False))
}
PROGRAMS = {  # preset, changes, kernels
    "narrow": (
        "cartpole_ppo",
        {"policies.agent.minibatches": 1},
        {"act", "scan_replicas", "note", "decayed", "gradient"},
    ),
    "wide": (
        "tag_continuous",
        {**FEW, **HIDDEN},
        {"nearest_neighbors", "act", "note", "decayed", "wide_forward", "wide_backward"},
    ),
    "streamed": (
        "tag_small",
        STREAMED,
        {"nearest_neighbors", "act", "note", "decayed", "gradient"},
    ),
}


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def update_of(preset, **changes):
    """Return an update and the shapes of its argument."""
    learner = make_learner(load_config(preset, **{**SMALL, **changes}))
    return functools.partial(learner.update), jax.eval_shape(learner.init, jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "card"),
    # the other ones contain the same primitives in larger blocks
    [*(("narrow", card) for card in CARDS), ("wide", CARDS[0]), ("streamed", CARDS[-1])],
)
def test_update_lowers_for_every_gpu(program, card, as_on_a_gpu):
    preset, changes, kernels = PROGRAMS[program]
    assert kernels_in(lowered(*update_of(preset, **changes), card=card)) == kernels


def heard(preset, **changes):
    """Return the report of a run on a GPU about kernels."""
    update, state = update_of(preset, **changes)
    with listening() as decisions:
        jax.eval_shape(update, state)
    return words_of_kernels(decisions)


@pytest.mark.slow
def test_run_reports_kernels_and_reasons(as_on_a_gpu, registry, monkeypatch):
    class Sorts(wdjax.envs.classic_control.cartpole.CartPole):
        def step(self, key, state, action, params):
            obs, *rest = super().step(key, state, action, params)
            return jnp.sort(obs), *rest

    wdjax.register("Sorts", Sorts)
    assert heard("cartpole_ppo") == "Fused kernels: whole rollouts, learning of agent"
    assert heard("cartpole_ppo", env="Sorts") == (
        "Fused kernels: acting of agent, learning of agent. "
        "Plain XLA: whole rollouts, environment steps "
        "(sort: this primitive is not supported in kernels)"
    )
    with monkeypatch.context() as patched:
        patched.setattr("wdjax.train.kernels.rollout.MAX_OPERATIONS", 10)
        limited = heard("cartpole_ppo")
    assert "Plain XLA: whole rollouts, environment steps (a step has more than 10" in limited
    recurrent = heard("cartpole_ppo", **{"policies.agent.network.recurrent_size": 8})
    assert (
        "environment steps. "
        "Plain XLA: whole rollouts (agent: it is recurrent); acting of agent, learning of"
        in recurrent
    )
    deep = heard("cartpole_ppo", **{"policies.agent.network.head_hidden_sizes": [8]})
    assert "whole rollouts (agent: head_hidden_sizes [8]); acting of agent, learning of" in deep


class Sorted(PPO):
    """PPO with a loss that does not lower in a kernel."""

    def loss(self, new, batch, options, mean):
        loss, means = super().loss(new, batch, options, mean)
        none = mean({"none": jnp.sort(new.log_prob)})
        return loss + 0.0 * none["none"], means | none


@pytest.mark.slow
def test_custom_loss_that_does_not_lower_uses_plain_xla(as_on_a_gpu):
    changes = {
        "policies.agent.algorithm": f"{__name__}:Sorted",
        "policies.agent.network.hidden_sizes": [16],
    }
    update, state = update_of("cartpole_ppo", **changes)
    with listening() as decisions:
        text = lowered(update, state)
    assert "sort" in decisions["learning of agent"]
    assert kernels_in(text) == {"act", "scan_replicas", "note", "decayed"}


def test_nothing_is_reported_on_a_cpu():
    assert heard("cartpole_ppo") == ""


WORDS = (
    "Fused kernels: none. "
    "Plain XLA: whole rollouts, acting of agent, environment steps, learning of agent "
    "(kernels: false)"
)


@pytest.mark.slow
def test_kernels_are_reported_once(as_on_a_gpu):
    learner = make_learner(load_config("cartpole_ppo", **SMALL, kernels=False))
    state, said = jax.eval_shape(learner.init, jax.random.key(0)), []
    with telling(said.append):
        for num_updates in (1, 2):
            lower_chunk(learner, state, num_updates)
    assert said == [WORDS]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["lowered", "compiled"])
def test_plain_xla_replaces_kernels_that_fail(when, as_on_a_gpu, monkeypatch, quick_compile):
    def fails(*arguments, **named):
        if support.why_no_kernels() is None:
            raise RuntimeError("no such\n instruction")
        return compiles(*arguments, **named)

    compiles = programs.compile_lowered
    monkeypatch.setattr(support, "_FAILED", [])
    monkeypatch.setattr(
        *((pallas, "call") if when == "lowered" else (programs, "compile_lowered")), fails
    )
    learner = make_learner(
        load_config("cartpole_ppo", **SMALL, **{"policies.agent.minibatches": 1})
    )
    said = []
    with telling(said.append):
        state, program, _ = compile_and_init(learner, abstract_state(learner.setup), 0, 2)
    work = "whole rollouts, acting of agent, environment steps, learning of agent"
    failed = "(kernels failed: no such instruction)"
    assert said[-1] == f"Fused kernels: none. Plain XLA: {work} {failed}"
    assert len(said) == (1 if when == "lowered" else 2)
    assert int(program(state, np.int32(2))[0].num_updates) == 2


def test_failure_without_kernels_is_raised_unchanged(as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(support, "_FAILED", [])
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # other tests want them
    tries = []

    @programs.plain_where_kernels_fail
    def make():
        tries.append(support.why_no_kernels())
        raise RuntimeError(f"try {len(tries)}")

    with pytest.raises(RuntimeError, match="try 1"):
        make()
    assert tries == [None, "kernels failed: try 1"]
    assert support.why_no_kernels() is None


@pytest.mark.slow
def test_trainer_reports_kernels(as_on_a_gpu, tmp_path, capsys, quick_compile):
    changes = {
        "kernels": False,
        "total_env_steps": 3 * 64,
        "updates_per_chunk": 2,
        "policies.agent.minibatches": 1,
    }
    trainer = Trainer(load_config("cartpole_ppo", **SMALL, **changes), tmp_path / "run")
    trainer.draw = lambda: None
    trainer.train()
    assert capsys.readouterr().out.count(WORDS) == 2  # before it begins, and in its last line


WITHOUT = """
import sys
sys.modules["jax.experimental.pallas.triton"] = None
import jax
import numpy as np
import wdjax
from wdjax.neighbors import nearest_neighbors
from wdjax.replicas import why_no_kernel
env, params = wdjax.make("cartpole")
jax.eval_shape(env.reset, jax.random.key(0), params)
print(nearest_neighbors(*np.eye(3, dtype=np.float32)[:2], np.ones(3, bool), 1)[0].tolist())
print(why_no_kernel(lambda x, _: (x, x), np.zeros(3), length=1))
jax.default_backend = lambda: "gpu"
for kernels in (True, False):
    config = wdjax.train.load_config("cartpole_ppo", kernels=kernels, num_envs=8, rollout_length=4)
    learner = wdjax.train.make_learner(config)
    update = jax.make_jaxpr(learner.update)(jax.eval_shape(learner.init, jax.random.key(0)))
    print("pallas" in str(update), "jax.experimental.pallas" in sys.modules)
"""


@pytest.mark.slow
def test_plain_xla_is_used_without_pallas_triton():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    neighbours, why, *traced = run.stdout.splitlines()
    assert neighbours == "[[2], [2], [0]]"
    assert why.startswith("this JAX has no Pallas for Triton (")
    assert {line.split()[0] for line in traced} == {"False"}
