"""Observation and action spaces: shapes, dtypes and bounds, with jittable `sample` and `contains`.

A space describes one agent. `space.batch(n)` is the space of n agents, as environments with groups
return it, and `space.single` is the space of one of them.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require, require_integer
from wdjax.tables import brief, html_table

LARGEST = 2**31 - 1  # largest int32


class _Shown:
    """Base of all spaces: notebooks show a table."""

    def _repr_html_(self) -> str:
        return html_table(space_rows(cast(Space, self)), caption=type(self).__name__)


@dataclasses.dataclass(frozen=True)
class _Choices(_Shown):
    """Base of the int32 spaces: `sizes` are numbers of choices, `batch_shape` the agent axes."""

    if TYPE_CHECKING:  # defined by the subclasses

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def sizes(self) -> int | np.ndarray: ...

    @property
    def dtype(self) -> Any:
        return jnp.int32

    @property
    def single(self) -> Self:
        return dataclasses.replace(cast(Any, self), batch_shape=())

    def batch(self, num: int) -> Self:
        """Return the space of `num` agents, with a new leading axis."""
        own = cast(Any, self)
        return dataclasses.replace(own, batch_shape=(num, *own.batch_shape))

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw each component uniformly."""
        return jax.random.randint(key, self.shape, 0, self.sizes, jnp.int32)

    def contains(self, value: jax.Array) -> jax.Array:
        """Return whether the shape, the kind of dtype and all values match: a bool scalar."""
        value = jnp.asarray(value)
        fits = value.shape == self.shape and jnp.issubdtype(value.dtype, jnp.integer)
        return jnp.all((value >= 0) & (value < self.sizes)) if fits else jnp.bool_(False)


@dataclasses.dataclass(frozen=True)
class Discrete(_Choices):
    """Integers 0 .. n - 1, as int32 of shape `batch_shape`."""

    n: int  # number of choices
    batch_shape: tuple[int, ...] = ()  # leading agent axes

    def __post_init__(self):
        _check_size("Discrete.n", self.n)
        _check_shape("Discrete.batch_shape", self.batch_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.batch_shape

    @property
    def sizes(self) -> int:
        return self.n

    @property
    def nvec(self) -> tuple[int, ...]:
        """The tuple (n,), as for a MultiDiscrete of one component."""
        return (self.n,)


@dataclasses.dataclass(frozen=True)
class MultiDiscrete(_Choices):
    """Discrete components: component i is in 0 .. nvec[i] - 1, int32 of shape [..., len(nvec)]."""

    nvec: tuple[int, ...]  # number of choices of each component
    batch_shape: tuple[int, ...] = ()  # leading agent axes

    def __post_init__(self):
        sequence = (tuple, list, np.ndarray)
        require(
            isinstance(self.nvec, sequence)
            and not any(isinstance(size, sequence) for size in self.nvec),
            "MultiDiscrete.nvec",
            self.nvec,
            "a tuple of sizes, like (3, 3)",
            TypeError,
        )
        object.__setattr__(self, "nvec", tuple(self.nvec))  # hashable, unlike a list or an array
        require(len(self.nvec) > 0, "MultiDiscrete.nvec", self.nvec, "a tuple of at least one size")
        for size in self.nvec:
            _check_size("a size in MultiDiscrete.nvec", size)
        _check_shape("MultiDiscrete.batch_shape", self.batch_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.batch_shape, len(self.nvec))

    @property
    def sizes(self) -> np.ndarray:
        return np.broadcast_to(np.array(self.nvec, np.int32), self.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Box(_Shown):
    """Numbers in [low, high]; each bound is a number or an array that broadcasts to `shape`."""

    low: Any = -np.inf  # lower bound, inclusive
    high: Any = np.inf  # upper bound, inclusive
    shape: tuple[int, ...] = ()  # shape of a value, including agent axes
    dtype: Any = jnp.float32  # dtype of a value
    batch_ndim: int = 0  # number of leading agent axes in `shape`

    def __post_init__(self):
        _check_shape("Box.shape", self.shape)
        object.__setattr__(self, "shape", tuple(self.shape))  # hashable, unlike a list
        if not _is_real(self.dtype):
            raise TypeError(
                f"Box.dtype = {self.dtype!r}: must be a dtype of real numbers, like jnp.float32"
            )
        self._check_bounds()

    def _check_bounds(self) -> None:
        """Raise if a bound is not numeric or has a wrong shape, or if concrete bounds cross."""
        bounds = {"low": self.low, "high": self.high}
        for name, bound in bounds.items():
            try:
                dtype = getattr(bound, "dtype", None) or np.asarray(bound).dtype
            except ValueError:  # rows of unequal lengths
                dtype = np.dtype(object)
            if not _is_real(dtype):
                raise TypeError(f"Box.{name} = {bound!r}: must be a number, or an array of numbers")
            require(
                broadcasts_to(np.shape(bound), self.shape),
                f"shape of Box.{name}",
                np.shape(bound),
                f"one that broadcasts to {self.shape}",
            )
        try:
            low, high = (np.asarray(bound, np.float64) for bound in bounds.values())
        except jax.errors.TracerArrayConversionError:
            return
        require(np.all(low < np.inf), "Box.low", self.low, "below infinity, not NaN")
        require(np.all(high > -np.inf), "Box.high", self.high, "above minus infinity, not NaN")
        require(
            np.all(np.broadcast_to(low, self.shape) <= np.broadcast_to(high, self.shape)),
            "Box.low",
            self.low,
            f"at most Box.high = {getattr(self.high, 'tolist', lambda: self.high)()!r}",
        )

    @property
    def single(self) -> Self:
        return dataclasses.replace(self, shape=self.shape[self.batch_ndim :], batch_ndim=0)

    def batch(self, num: int) -> Self:
        """Return the space of `num` agents, with a new leading axis."""
        return dataclasses.replace(self, shape=(num, *self.shape), batch_ndim=self.batch_ndim + 1)

    def __eq__(self, other: object) -> bool:
        """Compare two boxes; the bounds must be concrete, not traced."""
        return (
            isinstance(other, Box)
            and self.shape == other.shape
            and self.batch_ndim == other.batch_ndim
            and jnp.dtype(self.dtype) == jnp.dtype(other.dtype)
            and np.array_equal(
                np.broadcast_to(self.low, self.shape), np.broadcast_to(other.low, other.shape)
            )
            and np.array_equal(
                np.broadcast_to(self.high, self.shape), np.broadcast_to(other.high, other.shape)
            )
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.batch_ndim, jnp.dtype(self.dtype)))

    def _bounds(self) -> tuple[jax.Array, jax.Array]:
        low, high = jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)
        return jnp.broadcast_to(low, self.shape), jnp.broadcast_to(high, self.shape)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw a random value.

        Uniform between two finite bounds, exponential from a single finite bound, normal without
        finite bounds.
        """
        low, high = self._bounds()
        uniform_key, normal_key = jax.random.split(key)
        uniform = jax.random.uniform(uniform_key, self.shape, jnp.float32)
        normal = jax.random.normal(normal_key, self.shape, jnp.float32)
        both = jnp.isfinite(low) & jnp.isfinite(high)
        integer = not jnp.issubdtype(self.dtype, jnp.floating)  # or bool
        first, last = (
            jnp.where(both, low, 0.0),
            jnp.where(both, high + 1.0 if integer else high, 1.0),
        )
        inside = first * (1.0 - uniform) + last * uniform  # last - first could overflow
        inside = jnp.clip(jnp.floor(inside) if integer else inside, low, high)
        step = -jnp.log1p(-uniform)
        value = jnp.where(
            jnp.isfinite(low), low + step, jnp.where(jnp.isfinite(high), high - step, normal)
        )
        return jnp.where(both, inside, value).astype(self.dtype)

    def clip(self, value: jax.Array) -> jax.Array:
        """Clip values to the bounds, also with further leading axes, `[..., *shape]`."""
        low, high = (jnp.broadcast_to(bound, jnp.shape(value)) for bound in self._bounds())
        return jnp.clip(value, low, high).astype(self.dtype)

    def contains(self, value: jax.Array) -> jax.Array:
        """Return whether the shape, the kind of dtype and all values match; NaN is never inside."""
        value = jnp.asarray(value)
        kinds = (jnp.floating, jnp.integer, jnp.bool_)
        kind = next(kind for kind in kinds if jnp.issubdtype(self.dtype, kind))
        if value.shape != self.shape or not jnp.issubdtype(value.dtype, kind):
            return jnp.bool_(False)
        low, high = self._bounds()
        return jnp.all((value >= low) & (value <= high))


@dataclasses.dataclass(frozen=True)
class Dict(_Shown):
    """A dict of spaces; its values are dicts with the same keys."""

    spaces: Mapping[str, Any]  # name -> space

    def __post_init__(self):
        require(
            isinstance(self.spaces, Mapping),
            "Dict.spaces",
            self.spaces,
            "a dict of names and spaces",
            TypeError,
        )
        require(len(self.spaces) > 0, "Dict.spaces", self.spaces, "a dict of at least one space")
        for name, space in self.spaces.items():
            require(
                isinstance(name, str),
                "a name in Dict.spaces",
                name,
                f"a string, not {type(name).__name__}",
                TypeError,
            )
            require(
                isinstance(space, Space),
                f"Dict.spaces[{name!r}]",
                space,
                "a Box, Discrete, MultiDiscrete or Dict",
                TypeError,
            )

    @property
    def single(self) -> "Dict":
        return Dict({name: space.single for name, space in self.spaces.items()})

    def batch(self, num: int) -> "Dict":
        """Return the space of `num` agents, with a new leading axis in each part."""
        return Dict({name: space.batch(num) for name, space in self.spaces.items()})

    def __getitem__(self, name: str) -> Any:
        return self.spaces[name]

    def __hash__(self) -> int:
        return hash(frozenset(self.spaces.items()))  # equality ignores the order of names

    def sample(self, key: jax.Array) -> dict[str, Any]:
        """Draw a value of every part, each with its own key."""
        return self.sample_with(lambda space, part_key: space.sample(part_key), key)

    def sample_with(self, draw: Callable[[Any, jax.Array], Any], key: jax.Array) -> dict[str, Any]:
        """Draw a value of every part by draw(space, key), each with its own key."""
        keys = jax.random.split(key, len(self.spaces))
        return {name: draw(space, keys[i]) for i, (name, space) in enumerate(self.spaces.items())}

    def contains(self, value: Any) -> jax.Array:
        """Return whether the keys match and every part is contained: a bool scalar."""
        if not isinstance(value, Mapping) or set(value) != set(self.spaces):
            return jnp.bool_(False)
        return jnp.all(
            jnp.stack([space.contains(value[name]) for name, space in self.spaces.items()])
        )


Space = Discrete | MultiDiscrete | Box | Dict


def space_rows(space: Space, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, description) of each space in nested Dicts: "Box[5] float32 from -1 to 1"."""
    if isinstance(space, Dict):
        for part, inside in space.spaces.items():
            yield from space_rows(inside, f"{name}.{part}".removeprefix("."))
        return
    if isinstance(space, Box):
        values = f"{jnp.dtype(space.dtype)} from {brief(space.low)} to {brief(space.high)}"
    else:
        values = f"int32, choices: {', '.join(map(str, space.nvec))}"
    yield name, f"{type(space).__name__}{list(space.shape)} {values}"


def sample_shapes(space: Any, axes: Sequence[Any] = ()) -> Any:
    """Return the shapes [*axes, *shape] and dtypes of samples, without an array on a device."""
    return with_axes(jax.eval_shape(lambda: space.sample(jax.random.key(0))), axes)


def with_axes(tree: Any, axes: Sequence[Any] = ()) -> Any:
    """Return the shapes and dtypes of a pytree of arrays, with leading axes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*axes, *leaf.shape), leaf.dtype), tree)


def require_structure(name: str, value: Any, space: Any, axes: tuple[int, ...] = ()) -> None:
    """Raise ValueError unless a value has the keys of the space and shapes [*axes, *shape].

    Dtypes and bounds are not compared, because the value may be traced.
    """
    if isinstance(space, Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            raise ValueError(f"{name} = {_brief(value)}: must be {_brief(space.spaces)}")
        for part, inside in space.spaces.items():
            require_structure(f"{name}[{part!r}]", value[part], inside, axes)
    elif value is None or isinstance(value, Mapping) or jnp.shape(value) != (*axes, *space.shape):
        replicas = f", {axes[0]} replicas of {space.shape}" if axes else ""
        raise ValueError(
            f"{name} = {_brief(value)}: must be an array of shape {(*axes, *space.shape)}{replicas}"
        )


def _brief(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(map(repr, value))}" if value else "an empty dict"
    return "None" if value is None else f"an array of shape {jnp.shape(value)}"


def agent_axes(space: Any) -> set[tuple[int, ...]]:
    """Return the agent axes of every part of a space: {(n,)} for n agents, {()} for one agent."""
    if isinstance(space, Dict):
        return set().union(*map(agent_axes, space.spaces.values()))
    return {space.shape[: space.batch_ndim] if isinstance(space, Box) else space.batch_shape}


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether an array of this shape broadcasts to the target shape."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _check_size(field: str, size: Any) -> None:
    require_integer(field, size, 1)
    require(size <= LARGEST, field, size, f"at most {LARGEST}, the largest int32")


def _check_shape(field: str, shape: Any) -> None:
    is_sequence = isinstance(shape, (tuple, list))
    require(is_sequence, field, shape, "a tuple of sizes, like (3,)", TypeError)
    for size in shape:
        require_integer(f"a size in {field}", size, 0)


def _is_real(dtype: Any) -> bool:
    try:
        return any(
            jnp.issubdtype(jnp.dtype(dtype), kind)
            for kind in (jnp.bool_, jnp.integer, jnp.floating)
        )
    except TypeError:  # not a dtype
        return False
