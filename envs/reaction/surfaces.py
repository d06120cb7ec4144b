"""Potential energy surfaces with known solutions as float64 tables, and tables from files.

A table is E[ix, iy, iz] with x = x0 + spacing ix, y = y0 + spacing iy. Surfaces of two coordinates
have two layers: layer 0 is V, and layer 1 is V + 1 % of the barrier. Their outermost ring in x and
y is a wall. `pass_at` is the highest point of the minimax path between start and goal (the path
with the lowest maximum energy) on this grid. It determines the reward settings.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from wdjax.checks import did_you_mean, one_line
from wdjax.files import MOST_BYTES, open_regular

WALL = 1e6  # energy of the outer ring, and upper limit of all energies
OWN_TABLE = "table"  # surface name for custom `energies`
SHARE_OF_BARRIER = {"threshold": 0.05, "plain": 20.0}  # max_denergy / barrier
Place = tuple[float, float]


def mueller_brown(x: Any, y: Any) -> Any:
    """Return the Müller-Brown potential.

    With four terms i:

        V = sum_i A_i exp(a_i (x - X_i)^2 + b_i (x - X_i) (y - Y_i) + c_i (y - Y_i)^2).

    Source: Müller, Brown, Theor. Chim. Acta 53, 75 (1979).
    """
    terms = zip(
        (-200, -100, -170, 15),
        (-1, -1, -6.5, 0.7),
        (0, 0, 11, 0.6),
        (-10, -10, -6.5, 0.7),
        (1, 0, -0.5, -1),
        (0, 0.5, 1.5, 1),
        strict=True,
    )
    return sum(
        height * np.exp(a * (x - X) ** 2 + b * (x - X) * (y - Y) + c * (y - Y) ** 2)
        for height, a, b, c, X, Y in terms
    )


def leps(r_ab: Any, r_bc: Any) -> Any:
    """Return the LEPS potential of a collinear reaction A + BC.

    With the Coulomb integral Q, exchange integral J and overlap S of each pair of atoms, and
    r_AC = r_AB + r_BC:

        V = sum Q / (1 + S) - sqrt(J_AB^2 + J_BC^2 + J_AC^2 - J_AB J_BC - J_BC J_AC - J_AB J_AC),
        Q = d/2 (3/2 e^(-2 al (r - r0)) - e^(-al (r - r0))),
        J = d/4 (e^(-2 al (r - r0)) - 6 e^(-al (r - r0))).

    In the square root, each J is also divided by 1 + S.

    Source: Jónsson, Mills, Jacobsen, "Nudged elastic band method" (1998), appendix.
    """
    coulomb, exchange = 0.0, []
    for r, depth, overlap in ((r_ab, 4.746, 0.05), (r_bc, 4.746, 0.80), (r_ab + r_bc, 3.445, 0.05)):
        near = np.exp(-1.942 * (r - 0.742))
        coulomb = coulomb + depth / 2 * (1.5 * near**2 - near) / (1 + overlap)
        exchange.append(depth / 4 * (near**2 - 6 * near) / (1 + overlap))
    a, b, c = exchange
    return coulomb - np.sqrt(a**2 + b**2 + c**2 - a * b - b * c - a * c)


def leps_oscillator(r_ab: Any, x: Any) -> Any:
    """Return the LEPS potential coupled to a harmonic oscillator.

    With k = 0.2025 and c = 1.154:

        V = V_LEPS(r_AB, 3.742 - r_AB) + 2 k (r_AB - (3.742 / 2 - x / c))^2.

    Source: as `leps`.
    """
    return leps(r_ab, 3.742 - r_ab) + 2 * 0.2025 * (r_ab - (3.742 / 2 - x / 1.154)) ** 2


def wolfe_quapp(x: Any, y: Any) -> Any:
    """Return the Wolfe-Quapp potential V = x^4 + y^4 - 2 x^2 - 4 y^2 + x y + 0.3 x + 0.1 y.

    Source: Quapp, J. Chem. Phys. 122, 174106 (2005), eq. 11.
    """
    return x**4 + y**4 - 2 * x**2 - 4 * y**2 + x * y + 0.3 * x + 0.1 * y


def entropic_switch(x: Any, y: Any) -> Any:
    """Return the three-well potential of the entropic switch.

    The two deep wells are connected by a high direct pass and by a longer path over two low passes.

    Source: Metzner, Schütte, Vanden-Eijnden, J. Chem. Phys. 125, 084110 (2006).
    """

    def well(depth, X, Y) -> np.ndarray:
        return depth * np.exp(-((x - X) ** 2) - (y - Y) ** 2)

    wells = well(3, 0, 1 / 3) + well(-3, 0, 5 / 3) + well(-5, 1, 0) + well(-5, -1, 0)
    return wells + 0.2 * x**4 + 0.2 * (y - 1 / 3) ** 4


def quartic(x: Any, y: Any) -> Any:
    """Return the double-well potential V = (x^2 - 1)^2 + 2 y^2."""
    return (x**2 - 1) ** 2 + 2 * y**2


def cerjan_miller(x: Any, y: Any) -> Any:
    """Return the Cerjan-Miller potential V = (1 - y^2) x^2 e^(-x^2) + y^2 / 2.

    Source: Cerjan, Miller, J. Chem. Phys. 75, 2800 (1981), eq. 3.1.
    """
    return (1 - y**2) * x**2 * np.exp(-(x**2)) + y**2 / 2


def corrugated_morse(x: Any, y: Any, z: Any, period: float) -> Any:
    """Return the corrugated Morse potential of an atom above a surface.

    With D = al = 1, be = 0.2 and the `period` a in cells:

        V = D (xi e^(-2 al z) - 2 e^(-al z)),  xi = 1 + be (cos 2 pi x / a + cos 2 pi y / a).

    The form is common in atom-surface scattering; the constants are specific to wdjax.
    """
    xi = 1 + 0.2 * (np.cos(2 * np.pi * x / period) + np.cos(2 * np.pi * y / period))
    return xi * np.exp(-2 * z) - 2 * np.exp(-z)


@dataclasses.dataclass(frozen=True)
class Table:
    """Energies on a grid and reward settings; values that are None must be set in the params."""

    energies: np.ndarray  # float64 [nx, ny, layers], two atoms [nx, ny, layers] * 2
    start: tuple[int, ...] | None = None  # start cells x, y, z of each atom
    goal: tuple[int, ...] | None = None  # goal cells x, y, z of each atom
    nz: int | None = None  # number of cells of the z axis, including the layers of the table
    z_lower: int = 0  # z cell of layer 0
    top: float | None = None  # highest energy on the minimax path from start to goal
    origin: Place = (0.0, 0.0)  # x, y of cell (0, 0)
    spacing: float | None = None  # distance between cells; None: coordinates are cell indices
    saddles: tuple[Place, ...] = ()  # x, y of the saddle points of the formula

    @property
    def bottom(self) -> float:
        """Energy of the start cell, the zero of the barrier (layer 0 for surfaces in x and y)."""
        start = cast(tuple[int, ...], self.start)
        cell = (*start[:2], 0) if self.spacing else tuple(np.subtract(start, self.offset))
        return float(self.energies[cell])

    @property
    def offset(self) -> tuple[int, ...]:
        return (0, 0, self.z_lower) * (self.energies.ndim // 3)

    def settings(self, name: str) -> dict[str, float]:
        """Return the params `ienergy` and `max_denergy` for the reward settings called `name`.

        "plain" penalizes all cells with a higher energy than the start. "threshold" penalizes only
        energies above the pass, or at most 5 % of the barrier below it, so that the path with the
        highest return is also the minimax path.
        """
        top = cast(float, self.top)
        barrier = top - self.bottom
        max_denergy = SHARE_OF_BARRIER[name] * barrier
        ienergy = self.bottom if name == "plain" else round(top - max_denergy, 6)
        return {"ienergy": ienergy, "max_denergy": round(max_denergy, 6)}


def _plane(
    formula: Callable,
    origin: Place,
    shape: tuple[int, int],
    start: tuple[int, int],
    goal: tuple[int, int],
    pass_at: Place,
    saddles: tuple[Place, ...],
    spacing: float = 0.1,
) -> Table:
    """Return the table of a potential in two coordinates."""
    x, y = (origin[i] + spacing * np.arange(shape[i]) for i in range(2))
    energies = np.minimum(formula(x[:, None], y[None, :]), WALL)
    top = float(formula(*pass_at))
    offset = round(0.01 * (top - energies[start]), 6)
    energies[[0, -1]] = energies[:, [0, -1]] = WALL
    layers = np.minimum(np.stack([energies, energies + offset], axis=-1), WALL)
    return Table(layers, (*start, 2), (*goal, 1), 4, 1, top, origin, spacing, saddles)


def _morse() -> Table:
    x, y, z = np.ogrid[:20, :20, :12]
    return Table(corrugated_morse(x, y, -0.8 + 0.1 * z, 10), (5, 5, 6), (15, 5, 5), 16, 2, -1.0)


def _two_atom_exchange() -> Table:
    """Return the table of two atoms that repel each other on a corrugated Morse surface.

    The repulsion is e^(-d^2 / 4). The distance d is measured in cells, in the plane, and between
    nearest periodic images.
    """
    x, y, z = np.ogrid[:8, :8, :5]
    alone = corrugated_morse(x, y, -0.75 + 0.25 * z, 4)
    cells = np.arange(8)
    offset = np.abs(cells[:, None] - cells[None, :])
    square_distance = np.minimum(offset, 8 - offset) ** 2
    pair = np.exp(
        -(square_distance[:, None, :, None] + square_distance[None, :, None, :]) / 4
    )  # [x1, y1, x2, y2]
    energies = alone[..., None, None, None] + alone + pair[:, :, None, :, :, None]
    return Table(energies, (2, 2, 3, 6, 2, 3), (6, 2, 3, 2, 2, 3), 9, 2, -2.6597354973257437)


_SADDLES = (-0.822002, 0.624313), (0.212487, 0.292988)  # of mueller_brown
SURFACES: dict[str, Callable[[], Table]] = {
    "mueller_brown": functools.partial(
        _plane, mueller_brown, (-1.5, -0.3), (28, 24), (9, 17), (21, 3), (-0.8, 0.7), _SADDLES
    ),
    "mueller_brown_fine": functools.partial(
        _plane,
        mueller_brown,
        (-1.5, -0.3),
        (56, 47),
        (19, 35),
        (42, 7),
        (-0.8, 0.65),
        _SADDLES,
        spacing=0.05,
    ),
    "leps": functools.partial(
        _plane, leps, (0.4, 0.4), (36, 36), (30, 3), (3, 30), (1.4, 0.8), ((1.441742, 0.800242),)
    ),
    "leps_oscillator": functools.partial(
        _plane,
        leps_oscillator,
        (0.4, -3.0),
        (32, 61),
        (3, 43),
        (26, 17),
        (2.0, -0.1),
        ((2.020828, -0.172901),),
    ),
    "wolfe_quapp": functools.partial(
        _plane,
        wolfe_quapp,
        (-2.0, -2.0),
        (41, 41),
        (8, 35),
        (31, 5),
        (-1.0, -0.1),
        ((-1.022244, -0.116062), (-0.303211, -1.401338), (0.940969, 0.131252)),
    ),
    "entropic_switch": functools.partial(
        _plane,
        entropic_switch,
        (-2.0, -1.5),
        (41, 41),
        (10, 15),
        (30, 15),
        (0.6, 1.0),
        ((0.617272, 1.102735), (-0.617272, 1.102735), (0.0, -0.315827)),
    ),
    "quartic": functools.partial(
        _plane, quartic, (-1.6, -1.0), (33, 21), (6, 10), (26, 10), (0.0, 0.0), ((0.0, 0.0),)
    ),
    "cerjan_miller": functools.partial(
        _plane,
        cerjan_miller,
        (-2.4, -1.2),
        (49, 25),
        (24, 12),
        (47, 12),
        (1.0, 0.0),
        ((1.0, 0.0), (-1.0, 0.0)),
    ),
    "corrugated_morse": _morse,
    "two_atom_exchange": _two_atom_exchange,
}


@functools.cache
def built_in(name: str) -> Table:
    """Return the cached table of a surface in `SURFACES`, with read-only energies."""
    table = SURFACES[name]()
    table.energies.flags.writeable = False
    return table


def load_table(surface: str) -> Table:
    """Return the table of a surface.

    Args:
        surface: a name in `SURFACES`, or the path of a .npy file with real numbers.

    Returns:
        The table. Tables from files have energies only.

    Raises:
        ValueError: if the name is unknown, or the file is missing or not an array of real numbers.
    """
    if surface in SURFACES:
        return built_in(surface)
    if not surface.endswith(".npy"):
        valid = f"a built-in surface, {OWN_TABLE!r} or the path of a .npy file"
        closest = did_you_mean(surface, [*SURFACES, OWN_TABLE])
        raise ValueError(f"surface = {surface!r}: must be {valid}: {closest}")
    try:
        with open_regular(Path(surface).expanduser(), most=MOST_BYTES) as file:
            energies = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"surface = {surface!r}: must be a .npy file of numbers: {one_line(error)}"
        ) from None
    if not isinstance(energies, np.ndarray) or energies.dtype.kind not in "iuf":
        raise ValueError(f"surface = {surface!r}: must be a .npy file of one array of real numbers")
    return Table(energies.astype(np.float64))
