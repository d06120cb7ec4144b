"""Checks of the encoder and the memory of a network, before anything is trained.

They compute only shapes, and report which rule of `Encoder` or `RecurrentMemory` a custom class
breaks.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from wdjax.checks import require_known
from wdjax.env import Env, layout_of
from wdjax.spaces import Space, sample_shapes, with_axes
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks.encoders import Split, encoder_class, make_encoder
from wdjax.train.networks.memories import RecurrentMemory, make_memory


def check_options(path: str, config: NetworkConfig) -> None:
    """Raise ValueError for an unknown encoder or option.

    Args:
        path: name of the network, "policies.runner.network".
        config: its configuration.
    """
    parameters = _parameters(config, f"{path}.encoder")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = set(list(parameters)[2:]) - {"rngs"}  # without self and the space
    for name in config.encoder_options:
        require_known(f"option in {path}.encoder_options of {config.encoder!r}", name, known)


def with_layout(config: NetworkConfig, layout: Split | None) -> NetworkConfig:
    """Return the configuration with `layout` as the option `split`, if the encoder requires it.

    Args:
        config: configuration of a network.
        layout: the environment's `split_observation`, or None.
    """
    if layout is None or _missing_split(config) is None:
        return config
    return dataclasses.replace(config, encoder_options={**config.encoder_options, "split": layout})


def require_layout(path: str, config: NetworkConfig, env: Env) -> None:
    """Raise ValueError if the encoder requires `split`, and neither options nor `env` define it."""
    asked = _missing_split(config)
    if asked is not None and asked.default is asked.empty and layout_of(env) is None:
        raise ValueError(
            f"{path}.encoder = {config.encoder!r}: {type(env).__name__} does not define how to "
            "split observations into agents. Add a method split_observation, or name a function "
            "as encoder_options.split."
        )


def _parameters(
    config: NetworkConfig, field: str = "network.encoder"
) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of an encoder's `__init__`, including self."""
    encoder = encoder_class(config.encoder, field)
    return inspect.signature(encoder.__init__).parameters  # type: ignore[misc]  # of a class


def _missing_split(config: NetworkConfig) -> inspect.Parameter | None:
    """Return the parameter `split` of an encoder, if neither an option nor a default sets it."""
    split = _parameters(config).get("split")
    named = config.encoder_options.get("split") is not None
    return None if split is None or named or split.default not in (split.empty, None) else split


def check_encoder(
    path: str, config: NetworkConfig, observation_space: Space, layout: Split | None = None
) -> int:
    """Return the width of an encoder's output.

    Args:
        path: name of the network, "policies.runner.network".
        config: its configuration.
        observation_space: space of one agent, without the action mask.
        layout: the environment's `split_observation`, or None.

    Raises:
        TypeError: if the encoder breaks a rule of `Encoder`.
    """
    what = f"{path}.encoder {config.encoder!r}"
    options = f"{what} with encoder_options {config.encoder_options}"
    config = with_layout(config, layout)
    encoder = built(what, options, lambda rngs: make_encoder(observation_space, config, rngs))
    width = getattr(encoder, "num_features", None)
    if isinstance(width, bool) or not isinstance(width, int):
        raise TypeError(
            f"{what}: must set num_features, the width of its output, to a whole number, "
            f"not {width!r}"
        )
    for axes in ((4,), (2, 3)):
        try:
            features = shapes_of(encoder, "__call__", sample_shapes(observation_space, axes))
        except Exception as error:  # user code may raise any exception
            raise TypeError(
                f"{what}: must accept any leading axes, but fails for {axes}: {error}"
            ) from error
        returned = getattr(features, "shape", type(features).__name__)
        if returned != (*axes, width):
            raise TypeError(
                f"{what}: returns {returned} for observations with leading axes {axes}; "
                f"must return {(*axes, width)}, with num_features = {width} last"
            )
    return width


def check_memory(path: str, config: NetworkConfig, in_features: int) -> RecurrentMemory | None:
    """Return the memory of a network as shapes and dtypes, None for a feed-forward network.

    Args:
        path: name of the network, "policies.runner.network".
        config: its configuration.
        in_features: width of the features before the memory.

    Raises:
        TypeError: if the memory breaks a rule of `RecurrentMemory`.
    """
    if not config.recurrent_size:
        return None
    what, init = f"{path}.memory {config.memory!r}", nnx.initializers.zeros_init()
    memory = built(what, what, lambda rngs: make_memory(in_features, config, init, rngs))
    try:
        for call, returned, wanted in memory_calls(memory, in_features, config.recurrent_size):
            if returned != wanted:
                raise TypeError(f"{call} returns {returned}; must return {wanted}")
    except Exception as error:  # user code may raise any exception
        raise TypeError(f"{what}: {error}") from error
    return memory


def memory_calls(
    memory: RecurrentMemory, in_features: int, size: int
) -> Iterator[tuple[str, chex.ArrayTree, chex.ArrayTree]]:
    """Yield (call, returned, wanted) for the methods of a memory, pytrees of "dtype[shape]"."""

    def described(shapes: chex.ArrayTree) -> chex.ArrayTree:
        return jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", shapes)

    def empty(*shape: int) -> chex.ArrayTree:
        try:
            return jax.eval_shape(lambda: memory.empty(shape))
        except Exception as error:
            raise TypeError(f"empty({shape}), which may not use parameters: {error}") from error

    x, y = (jax.ShapeDtypeStruct((width,), jnp.float32) for width in (in_features, size))
    for axes in ((4,), (2, 3)):
        carry = empty(*axes)
        yield f"empty({axes})", described(carry), described(with_axes(empty(), axes))
        returned, wanted = (
            shapes_of(memory, "__call__", carry, with_axes(x, axes)),
            (carry, with_axes(y, axes)),
        )
        yield f"a step with leading axes {axes}", described(returned), described(wanted)
    restarts = jax.ShapeDtypeStruct((5, 3), bool)
    features = shapes_of(memory, "unroll", empty(3), with_axes(x, (5, 3)), restarts)
    yield "unroll of 5 steps of 3 sequences", described(features), described(with_axes(y, (5, 3)))


def built(what: str, described: str, make: Callable[[nnx.Rngs], Any]) -> Any:
    """Return a new module as shapes and dtypes.

    Args:
        what: name of the module in errors.
        described: the same, where the module cannot be built.
        make: builds it from random streams.

    Raises:
        TypeError: if it cannot be built, or has arrays that are not nnx.Param.
    """

    def build() -> Any:
        try:
            module = make(nnx.Rngs(jax.random.key(0)))
        except Exception as error:  # user code may raise any exception
            raise TypeError(f"{described}: {error}") from error
        require_params(what, module)
        return module

    return nnx.eval_shape(build)


def shapes_of(module: Any, method: str, *inputs: chex.ArrayTree) -> chex.ArrayTree:
    """Return the shapes and dtypes that a method of a module returns."""
    graphdef, params = nnx.split(module)

    def call(params: nnx.State, *inputs: chex.ArrayTree) -> chex.ArrayTree:
        return getattr(nnx.merge(graphdef, params), method)(*inputs)

    return jax.eval_shape(call, params, *inputs)


def require_params(what: str, module: nnx.Module) -> None:
    """Raise TypeError for a module with variables or arrays that are not nnx.Param."""
    kept = {place: type(variable) for place, variable in nnx.to_flat_state(nnx.state(module))}
    for place, part in nnx.iter_modules(module):  # under a trace, the state has no bare arrays
        arrays = [k for k, value in vars(part).items() if isinstance(value, jax.Array | np.ndarray)]
        kept |= {(*place, name): jax.Array for name in arrays}
    for place, kind in kept.items():
        if not issubclass(kind, nnx.Param):
            raise TypeError(
                f"{what}: {'.'.join(map(str, place))} is of type {kind.__name__}; only nnx.Param "
                "is stored and trained. Remove running statistics and dropout; make a constant "
                "a tuple, or build it in __call__."
            )
