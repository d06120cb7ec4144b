"""Population: many members of one configuration, trained together by one program."""

import contextlib
import copy
import functools
import json
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require, require_integer
from wdjax.console import Console
from wdjax.files import make_folder_inside, write_text
from wdjax.signals import stop_signals
from wdjax.train.config.schema import TrainConfig
from wdjax.train.evaluation.episodes import Episodes
from wdjax.train.evaluation.evaluate import evaluate
from wdjax.train.host.callbacks import Callback, make_callbacks, require_goals
from wdjax.train.host.chunks import most_updates, play, with_lines
from wdjax.train.host.loggers import close_loggers
from wdjax.train.learner.learner import Learner, learner_of, make_learner, metric_names
from wdjax.train.learner.setup import make_setup
from wdjax.train.population.members import (
    Member,
    describe_members,
    difference,
    read_members,
    require_members,
    state_of,
    stored_size,
    write_members,
)
from wdjax.train.population.programs import (
    Programs,
    choose_num_devices,
    even_size,
    group_by_program,
    most_devices,
)
from wdjax.train.population.training import (
    After,
    call_for_members,
    newest_states,
    save_in_folder,
    train_in_folder,
)
from wdjax.train.state.hypers import ScheduleArrays
from wdjax.train.state.metric import values_of
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import copied, open_checkpoints, restore


class Population:
    """Train many members of one configuration together, as one program.

    Members differ in traced values: seeds, env_params and traced hyperparameters. Each member uses
    the same random numbers as its run on its own, and its parameters agree to float rounding.

        rates, field = (1e-3, 3e-3, 1e-2, 3e-2), "policies.agent.learning_rate"
        configs = [load_config("cartpole_ppo", seed=i, **{field: r}) for i, r in enumerate(rates)]
        population = Population(configs)
        states = population.init()                                # leaves [4, ...]
        states, metrics = population.run(states, num_updates=20)  # name -> [4, 20]
        order = np.argsort(metrics["agent/episode_return"][:, -1])
        states = population.select(states, order[[3, 3, 2, 2]])   # the better half, twice
        episodes = population.evaluate(states, jax.random.key(0), num_episodes=64)
        population.save("runs/four", states)
        states = population.resume("runs/four")

    `train` trains in a folder, with metrics, callbacks and checkpoints.

    Args:
        configs: configuration of each member, with its seed.
        devices: number of devices that share the members equally; 0: as many as possible (a CPU
            counts as one).
        trust: additional modules from which saved runs may import code (see `load_run`).
        members: content of members.json for each member; its key "member" is the member's number
            in metrics.jsonl. None: the place in `configs`, and the configuration.

    Raises:
        ValueError: if members differ in a static field, if the devices cannot share the members
            equally, or if a configuration is invalid; raised before anything is compiled.
        TypeError: if `configs` is not a sequence of TrainConfig.
    """

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        devices: int = 0,
        trust: Collection[str] = (),
        members: Sequence[Member] | None = None,
    ):
        configs = read_members(configs)
        number = choose_num_devices(devices or most_devices(len(configs)))
        shared = len(configs) % number == 0
        require(shared, "members", len(configs), f"divisible by {number} (devices)")
        (static, _), *others = group_by_program(configs)
        if others:
            raise ValueError(difference(static, *others[0]))
        self.configs = configs  # one per member, with schedules in env steps
        self.members = describe_members(configs, members)
        self.size = len(configs)  # members in the program; the last of `configs` fills the rest
        self.programs = Programs(static, make_setup(with_lines(configs[0]), trust), number)
        if goals := configs[0].stop_at:
            require_goals(goals, self.metric_names)

    def _with(
        self, configs: list[TrainConfig], members: Sequence[Member], size: int
    ) -> "Population":
        other = copy.copy(self)
        other.configs, other.members, other.size = configs, members, size
        return other

    @classmethod
    def group(
        cls,
        configs: Sequence[TrainConfig],
        devices: int = 0,
        trust: Collection[str] = (),
        members: Sequence[Member] | None = None,
        known: Sequence["Population"] = (),
    ) -> list["Population"]:
        """Return a population for each program that the configurations need, in their order.

        Args:
            configs: as for `Population`.
            devices: number of devices; 0: all (a CPU counts as one). The last member is repeated
                if they cannot share the members equally.
            trust: as for `Population`.
            members: as for `Population`.
            known: populations whose compiled programs are used again.
        """
        configs, number = read_members(configs), choose_num_devices(devices)
        members, populations = describe_members(configs, members), []
        for static, places in group_by_program(configs):
            own = [configs[i] for i in places]
            match = next((other for other in known if other.programs.static == static), None)
            population = match or cls(own[:1] * number, number, trust)
            size = even_size(len(own), len(own), number)
            populations.append(population._with(own, [members[i] for i in places], size))
        return populations

    def fit(self, most: int = 0) -> int:
        """Return the size of batches that fit into memory, and compile their program.

        Args:
            most: largest number of members in a batch; 0: as many as memory allows.

        Raises:
            ValueError: if a single member does not fit.
        """
        return self.programs.fit(self.configs[0], len(self.configs), most)

    def split(self, folder: Path, most: int = 0) -> list[tuple[Path, "Population"]]:
        """Split into batches that fit into memory, for `train`.

        Their size is stored in the folder, so that a resumed population is split in the same way.

        Args:
            folder: contains the folders of the batches, 000, 001, ...
            most: as for `fit`.

        Returns:
            (folder, population) of each batch.

        Raises:
            ValueError: as `fit`, and if the devices cannot share batches of the stored size.
        """
        size = stored_size(folder, self.num_devices) or self.fit(most)
        make_folder_inside(folder)
        write_text(folder / "size.json", json.dumps({"members_at_once": size}) + "\n", sync=True)
        return [(folder / f"{i:03d}", batch) for i, batch in enumerate(self.batches(size))]

    def gather(self, batches: Sequence[tuple[Path, "Population"]]) -> TrainState:
        """Return the newest states of these members, leaves [members, ...].

        Args:
            batches: (folder, population) of batches with all members, from old to new.
        """
        found = newest_states(batches, [member["member"] for member in self.members])
        found += found[-1:] * (self.size - len(found))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)

    def batches(self, size: int) -> list["Population"]:
        """Split into populations of `size` members, which use the same compiled program.

        The last member fills the last batch.
        """
        return [
            self._with(self.configs[i : i + size], self.members[i : i + size], size)
            for i in range(0, len(self.configs), size)
        ]

    @property
    def config(self) -> TrainConfig:
        """Configuration of the first member, with the size of chunks."""
        return self.programs.setup.config

    @functools.cached_property
    def metric_names(self) -> list[str]:
        """Names of the metrics that an update reports."""
        return metric_names(self.programs.setup)

    @property
    def num_devices(self) -> int:
        """Number of devices that share the members."""
        return self.programs.num_devices

    @property
    def shapes(self) -> TrainState:
        """Shapes, dtypes and shardings of the states."""
        return self.programs.abstract(self.configs[0], self.size)

    def init(self) -> TrainState:
        """Return the first states, [members, ...], equal to `Learner.init` of each member."""
        rest = self.configs[-1:] * (self.size - len(self.configs))
        return self.programs.start([*self.configs, *rest])

    def run(self, states: TrainState, num_updates: int) -> tuple[TrainState, dict[str, np.ndarray]]:
        """Train all members. The states are not donated; run(a) then run(b) equals run(a + b).

        Args:
            states: leaves [members, ...].
            num_updates: number of updates, at least 1.

        Returns:
            (states, metrics): as `Learner.run`; metrics are name -> [members, num_updates].

        Raises:
            ValueError, TypeError: if the number of states or updates is wrong.
        """
        require_integer("num_updates", num_updates, 1)
        states, most, parts = copied(self.place(states)), most_updates(self.config), []
        for done in range(0, num_updates, most):
            size = min(most, num_updates - done)
            played = play(self.programs.get(self.configs[0], self.size), states, size)
            states = played.state
            parts.append(values_of(played.metrics))
        return states, {
            name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]
        }

    def select(
        self, states: TrainState, indices: Sequence[int] | np.ndarray | jax.Array
    ) -> TrainState:
        """Copy members: state i becomes a copy of state `indices[i]`, but keeps its random key.

        Copies include hyperparameters and env_params, so that `configs` no longer lists them.
        Change hyperparameters of copies with `with_hypers`.

        Args:
            states: leaves [members, ...].
            indices: [members], place of the member that is copied, mostly the own place.

        Raises:
            ValueError: if the indices are not one place for each state.
        """
        states, chosen = self.place(states), np.asarray(indices)
        fits = chosen.dtype.kind in "iu" and chosen.shape == (self.size,)
        inside = fits and ((chosen >= 0) & (chosen < self.size)).all()
        require(inside, "indices", chosen, f"{self.size} numbers from 0 to {self.size - 1}")
        copies = jax.tree.map(lambda leaf: leaf[chosen], states)
        return self.place(copies.replace(key=states.key))

    def hypers(self, states: TrainState) -> dict[str, jax.Array]:
        """Return the traced hyperparameters: "policy.hyperparameter" -> [members].

        These are the names that `with_hypers` accepts. The value of a schedule is its first one.
        """
        first = lambda value: value.values[:, 0] if isinstance(value, ScheduleArrays) else value  # noqa: E731
        hypers = states.hypers.items()
        return {f"{policy}.{name}": first(own[name]) for policy, own in hypers for name in own}

    def member(self, states: TrainState, place: int) -> tuple[Learner, TrainState]:
        """Return a member as a run of its own on one device: its learner and state."""
        require_integer("place", place, 0, len(self.configs) - 1)
        learner = make_learner(self.configs[place], self.programs.setup.trust)
        return learner, state_of(states, place)

    def evaluate(
        self,
        states: TrainState,
        key: jax.Array,
        num_episodes: int = 256,
        greedy: bool = False,
        **options: Any,
    ) -> list[Episodes]:
        """Evaluate each member over complete episodes, by one program.

        Args:
            states: leaves [members, ...].
            key: random key, the same for all members: they play from the same initial states.
            num_episodes: number of episodes of each member.
            greedy: take the most likely actions.
            **options: other arguments of `wdjax.train.evaluate`.

        Returns:
            Episodes of each member.

        Raises:
            ValueError: as `wdjax.train.evaluate`, and if the number of states is wrong.
        """
        states, learner = self.place(states), learner_of(self.programs.setup)
        options |= {"num_episodes": num_episodes, "greedy": greedy}
        places = range(len(self.configs))
        return [evaluate(learner, state_of(states, i), key, **options) for i in places]

    def save(self, workdir: str | Path, states: TrainState) -> None:
        """Save a checkpoint of all members in a folder; the two newest ones are kept.

        Raises:
            ValueError: if the folder contains other members.
            OSError: if the checkpoint cannot be written.
        """
        save_in_folder(self, Path(workdir), self.place(states))

    def resume(self, workdir: str | Path) -> TrainState:
        """Return the states of the newest checkpoint in a folder, leaves [members, ...].

        Raises:
            FileNotFoundError: if the folder contains no checkpoint of a population.
            ValueError: if the folder contains other members, or the checkpoint is damaged.
        """
        workdir = Path(workdir)
        if not (require_members(workdir, self.text) and (workdir / "checkpoints").is_dir()):
            raise FileNotFoundError(f"{workdir} contains no checkpoint of a population")
        with open_checkpoints(workdir / "checkpoints", keep=None) as checkpoints:
            return restore(checkpoints, checkpoints.latest_step(), self.shapes)[0]

    def train(
        self,
        workdir: str | Path,
        num_updates: int | None = None,
        start: Callable[[], tuple[int, TrainState]] | None = None,
        after: After | None = None,
        every: int = 0,
        callbacks: Sequence[Callback | str] = (),
        runs: Path | None = None,
        stop: threading.Event | None = None,
        say: Callable[[str], None] = print,
    ) -> bool:
        """Train all members in a folder, from its newest checkpoint if it has one.

        Training ends after `num_updates`, once all members have reached `stop_at`, or at `stop`.
        It is then saved. A member with bad numbers stops, and the others continue.

        Args:
            workdir: folder of the population; created if missing.
            num_updates: updates of each member in total; None: as configured.
            start: returns (updates done, states) without a checkpoint; None: (0, `init()`).
            after: called after each chunk with (states, rows, rows of the chunk before), returns
                (states, rows) to continue with and to write; for selection. Needs `every`.
            every: chunks also end after each multiple of this number of updates.
            callbacks: functions of (run, row), or names of loggers, as for `Trainer`; called with
                a `run` (workdir, config, stop) and the row of every member.
            runs: folder of the members' folders, into which loggers write; None: members/.
            stop: event that ends training after the current chunk; None: Ctrl-C and SIGTERM.
            say: called with warnings.

        Returns:
            Whether training is complete. `resume` returns the states.

        Raises:
            ValueError: if the folder contains other members, or no checkpoint can be read.
            OSError: if metrics or a checkpoint cannot be written.
        """
        require(after is None or every > 0, "every", every, "at least 1 with `after`")
        last = self.config.num_updates if num_updates is None else num_updates
        workdir, callbacks = Path(workdir), make_callbacks(callbacks)
        write_members(workdir, self.text)
        with contextlib.ExitStack() as stack:
            stop = stop or stack.enter_context(stop_signals(Console()))
            stack.callback(close_loggers, callbacks)
            report = functools.partial(
                call_for_members, self, callbacks, runs or workdir / "members", stop, say
            )
            return train_in_folder(self, workdir, last, start, after, every, report, stop, say)

    @property
    def text(self) -> str:
        """Content of members.json."""
        return json.dumps({"size": self.size, "members": self.members}) + "\n"

    def place(self, states: TrainState) -> TrainState:
        """Return states on the devices of their members.

        Raises:
            ValueError, TypeError: unless there is one state for each member.
        """
        require(isinstance(states, TrainState), "states", states, "a TrainState", TypeError)
        shape, allowed = states.num_updates.shape, f"({self.size},), one state for each member"
        require(shape == (self.size,), "shape of states.num_updates", shape, allowed)
        return jax.device_put(states, self.programs.sharding)
