"""Parameters of an environment are written completely and read again."""

import dataclasses

import pytest

import wdjax
from wdjax.envs import CartPole
from wdjax.train import PolicyConfig, TrainConfig, complete_env_params


@dataclasses.dataclass(frozen=True)
class WithTuples(CartPole):
    names: tuple = ()
    sizes: tuple = (1, 2)


@pytest.mark.parametrize(
    ("env", "env_params"),
    [(WithTuples(("a",), (3, 4, 5)), {}), (WithTuples, {"names": ["a"], "sizes": [3, 4, 5]})],
)
def test_a_static_tuple_may_have_another_length_than_its_default(env, env_params, registry):
    wdjax.register("with_tuples", env)
    config = TrainConfig(
        env="with_tuples", policies={"agent": PolicyConfig()}, env_params=env_params
    )
    complete = complete_env_params(config).env_params
    as_yaml = {
        name: list(value) if isinstance(value, tuple) else value for name, value in complete.items()
    }
    for arguments in (complete, as_yaml):
        assert wdjax.make("with_tuples", **arguments)[0] == WithTuples(("a",), (3, 4, 5))
