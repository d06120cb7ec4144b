"""Names of the pytrees that training passes around. Import them for annotations.

Environments, networks and custom algorithms define the structure of these pytrees, so the names
document the meaning of a value and not its fields. Shapes are in the docstrings of the functions.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import chex
import jax

from wdjax.train.state.metric import Metric

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PyTree: TypeAlias = Any
"""a pytree that may contain custom classes, or leaves other than arrays, such as shapes"""

EnvState: TypeAlias = PyTree
"""state of an environment, as `Env.reset` returns it"""
EnvParams: TypeAlias = PyTree
"""parameters of an environment, as `Env.default_params` returns them"""
Observation: TypeAlias = chex.ArrayTree
"""observations in the structure of their space: an array, or nested dicts of arrays"""
Action: TypeAlias = chex.ArrayTree
"""actions as the environment receives them: an array, or a dict of arrays by group"""

Params: TypeAlias = chex.ArrayTree
"""parameters of a network: an `nnx.State`, or a pytree with its leaves"""
OptState: TypeAlias = chex.ArrayTree
"""state of an optimizer of optax"""
Carry: TypeAlias = chex.ArrayTree
"""state that a policy carries from step to step, such as a recurrent state; None without one"""
ActingState: TypeAlias = PyTree
"""result of `Algorithm.before_rollout`: the `PolicyState`, or a custom pytree"""
Extra: TypeAlias = PyTree
"""additional state or data that a custom algorithm defines"""

Fields: TypeAlias = dict[str, chex.ArrayTree]
"""fields of `Rows` by name, as `Algorithm.act` and `Algorithm.end_of_step` return them"""
Metrics: TypeAlias = dict[str, jax.Array | Metric]
"""metrics of an update by name: scalars, or `Metric`"""

OptionsClass: TypeAlias = "type[DataclassInstance]"
"""`Options` of an algorithm: a frozen dataclass whose fields have defaults"""
