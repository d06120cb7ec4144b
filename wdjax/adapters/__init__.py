"""Adapters between wdjax and gymnasium, PettingZoo, gymnax, JaxMARL and Jumanji.

`to_...` wraps a wdjax environment for another library, `from_...` wraps an environment of another
library for wdjax::

    from wdjax.adapters import to_gymnasium, ...
    env, params = wdjax.make("cartpole")
    to_gymnasium(env, params)                        # a gymnasium.Env
    to_gymnasium_vector(env, 64, params)             # a gymnasium.vector.VectorEnv
    register_gymnasium()                             # for gymnasium.make("wdjax/cartpole")
    to_gymnax(env, params)                           # a gymnax Environment
    to_pettingzoo(*wdjax.make("tag_continuous"))     # a pettingzoo.ParallelEnv
    to_jaxmarl(*wdjax.make("tag_continuous"))        # a JaxMARL MultiAgentEnv
    env, params = from_gymnax(MyGymnaxEnv())         # a wdjax.Env
    env, params = from_jaxmarl(MyJaxMARLEnv())       # a wdjax.Env
    env, params = from_jumanji(MyJumanjiEnv())       # a wdjax.Env
    env, params = wdjax.make("gymnax:CartPole-v1")   # from_gymnax, by name
    env, params = wdjax.make("jaxmarl:MPE_simple_tag_v3")
    env, params = wdjax.make("jumanji:RobotWarehouse-v0")

The other libraries are optional and are imported on first use. `pip install wdjax[adapters]`
installs gymnasium and PettingZoo. Install gymnax, JaxMARL and Jumanji separately.

`to_gymnasium` and `to_pettingzoo` run one replica and copy data between host and device in every
step: use them for compatibility, not for speed. `to_gymnasium_vector` makes one such copy per step
for all replicas. `to_gymnax` and `to_jaxmarl` stay in JAX and make none.
"""

from typing import TYPE_CHECKING, Any

from wdjax.lazy import import_when_used

if TYPE_CHECKING:
    from wdjax.adapters._from_gymnax import from_gymnax
    from wdjax.adapters._from_jaxmarl import from_jaxmarl
    from wdjax.adapters._from_jumanji import from_jumanji
    from wdjax.adapters._gymnasium_ids import register_gymnasium
    from wdjax.adapters._to_gymnasium import to_gymnasium, to_gymnasium_vector
    from wdjax.adapters._to_gymnax import to_gymnax
    from wdjax.adapters._to_jaxmarl import to_jaxmarl
    from wdjax.adapters._to_pettingzoo import to_pettingzoo

# Library -> pip requirement.
_INSTALL = {
    "gymnasium": "wdjax[adapters]",
    "pettingzoo": "wdjax[adapters]",
    "gymnax": "gymnax",
    "jaxmarl": "jaxmarl",
    "jumanji": "jumanji",
}

__all__ = [
    "from_gymnax",
    "from_jaxmarl",
    "from_jumanji",
    "register_gymnasium",
    "to_gymnasium",
    "to_gymnasium_vector",
    "to_gymnax",
    "to_jaxmarl",
    "to_pettingzoo",
]

# Modules start with "_": importing a module with its function's name would replace the function.
_get, __dir__, _HOME = import_when_used(__name__)


def _import(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        library = (error.name or "").split(".")[0]
        if library in ("", "wdjax"):
            raise
        # a dependency of one of the libraries is installed under its own name
        source = _INSTALL.get(library, library)
        raise ImportError(
            f"wdjax.adapters.{name} needs {library}: pip install '{source}'"
        ) from error


if not TYPE_CHECKING:
    __getattr__ = _import
