"""Environments in other libraries' forms: wdjax's for them (`to_...`), and theirs for wdjax (`from_...`).

    from wdjax.adapters import to_gymnasium, ...
    env, params = wdjax.make("cartpole")
    to_gymnasium(env, params)                             # a gymnasium.Env
    to_gymnasium_vector(env, 64, params)                  # a gymnasium.vector.VectorEnv
    register_gymnasium()                                  # then gymnasium.make("wdjax/cartpole"), and make_vec
    to_gymnax(env, params)                                # a gymnax Environment
    to_pettingzoo(*wdjax.make("tag_continuous"))          # a pettingzoo.ParallelEnv
    env, params = from_gymnax(MyGymnaxEnv())              # a wdjax.Env: wdjax.make("gymnax:CartPole-v1") by name
    env, params = from_jaxmarl(MyJaxMARLEnv())            # likewise: wdjax.make("jaxmarl:MPE_simple_tag_v3")

The other libraries are optional, and imported when one of these names is first used: `pip install wdjax[adapters]`
brings gymnasium and PettingZoo; gymnax and JaxMARL are installed on their own.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdjax.adapters._from_gymnax import from_gymnax
    from wdjax.adapters._from_jaxmarl import from_jaxmarl
    from wdjax.adapters._to_gymnasium import register_gymnasium, to_gymnasium, to_gymnasium_vector
    from wdjax.adapters._to_gymnax import to_gymnax
    from wdjax.adapters._to_pettingzoo import to_pettingzoo

# Public name -> the module that holds it. A module must not have the name of its function: importing it would put it in
# the function's place.
_HOME = {
    "from_gymnax": "wdjax.adapters._from_gymnax",
    "from_jaxmarl": "wdjax.adapters._from_jaxmarl",
    "register_gymnasium": "wdjax.adapters._to_gymnasium",
    "to_gymnasium": "wdjax.adapters._to_gymnasium",
    "to_gymnasium_vector": "wdjax.adapters._to_gymnasium",
    "to_gymnax": "wdjax.adapters._to_gymnax",
    "to_pettingzoo": "wdjax.adapters._to_pettingzoo",
}
# Library -> what pip installs it with.
_INSTALL = {"gymnasium": "wdjax[adapters]", "pettingzoo": "wdjax[adapters]", "gymnax": "gymnax", "jaxmarl": "jaxmarl"}

__all__ = [
    "from_gymnax", "from_jaxmarl", "register_gymnasium", "to_gymnasium", "to_gymnasium_vector", "to_gymnax",
    "to_pettingzoo",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'wdjax.adapters' has no attribute {name!r}")
    try:
        module = importlib.import_module(_HOME[name])
    except ModuleNotFoundError as error:
        library = (error.name or "").split(".")[0]
        if library in ("", "wdjax"):
            raise
        source = _INSTALL.get(library, library)  # what one of the libraries itself needs goes by its own name
        raise ImportError(f"wdjax.adapters.{name} needs {library}: pip install '{source}'") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
