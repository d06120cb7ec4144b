"""Random sequences of commands, as lines for a shell."""

import dataclasses
import random
import shlex
from collections.abc import Iterator, Mapping

# name -> policies
PRESETS = {"ppo": ("agent",), "a2c": ("agent",), "ddpg": ("agent",), "tag": ("tagger", "runner")}
STEPS = 32  # env steps per update in all presets
SIGNALS = {"KILL": 45, "TERM": 20, "INT": 15, "HUP": 12, "INT,INT": 8}


@dataclasses.dataclass(frozen=True)
class Command:
    """A wdjax command with an optional kill and jax settings, or a file operation of the shell.

    `KILL@disk:12 JAX_ENABLE_X64=1 wdjax train ppo.yaml` sends SIGKILL at the 12th file operation in
    the folder, `TERM@rows:2` sends SIGTERM after two new lines of metrics.jsonl, `INT,INT@time:0.7`
    sends SIGINT twice after 0.7 s.
    """

    words: tuple[str, ...]
    kill: str = ""
    settings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, line: str) -> "Command":
        words = shlex.split(line)
        kill = words.pop(0) if "@" in words[0] and ":" in words[0] else ""
        settings = []
        while "=" in words[0]:
            settings.append(words.pop(0))
        return cls(tuple(words), kill, tuple(settings))

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kill, *self.settings, shlex.join(self.words))))

    @property
    def name(self) -> str:
        """Return the command of wdjax, or of the shell."""
        return self.words[1] if self.words[0] == "wdjax" else self.words[0]

    @property
    def flags(self) -> Mapping[str, tuple[str, ...]]:
        """Return flag -> values, without leading dashes: {"total_env_steps": ("96",)}."""
        flags: dict[str, list[str]] = {}
        last: list[str] = []
        for word in self.words:
            if word.startswith("--"):
                last = flags.setdefault(word[2:].replace("-", "_"), [])
            else:
                last.append(word)
        return {flag: tuple(values) for flag, values in flags.items()}

    @property
    def places(self) -> tuple[str, ...]:
        """Return the arguments before the first flag."""
        rest = self.words[2:] if self.words[0] == "wdjax" else self.words[1:]
        return rest[: next((i for i, word in enumerate(rest) if word.startswith("-")), len(rest))]

    @property
    def folder(self) -> str:
        """Return the folder that the command may change, "" for a command that only reads."""
        if self.name in ("train", "sweep"):
            return self.flags.get("workdir", ("",))[0]
        return (
            self.places[0].partition("@")[0] if self.name in ("report", "render", "export") else ""
        )


def wdjax(*words: object, kill: str = "", settings: tuple[str, ...] = ()) -> Command:
    return Command(("wdjax", *map(str, words)), kill, settings)


def draw_sequence(seed: int) -> list[Command]:
    """Return the commands of a seed, equal on every machine."""
    rng = random.Random(seed)
    identities = {name: draw_identity(rng) for name in "ab"}
    commands = [train(rng, "a", identities["a"], first=True)]
    for _ in range(rng.randint(2, 8)):
        kind = rng.choices(["train", "read", "sweep", "shell", "wrong"], [50, 22, 11, 11, 6])[0]
        folder = rng.choices("ab", [75, 25])[0]
        if kind == "train":
            commands.append(train(rng, folder, identities[folder]))
        elif kind == "read":
            commands.append(read(rng))
        elif kind == "sweep":
            commands.append(sweep(rng, identities["a"]))
        elif kind == "shell":
            commands.append(shell(rng, folder))
        else:
            commands.append(wrong(rng, folder, identities[folder]))
    return commands


def draw_identity(rng: random.Random) -> dict[str, str]:
    """Return the fixed settings of a run: preset, seed, learning rate, jax settings."""
    preset = rng.choices(list(PRESETS), [45, 20, 15, 20])[0]
    identity = {"preset": preset, "seed": str(rng.choice([0, 0, 1, 7]))}
    if rng.random() < 0.06:
        policy = rng.choice(PRESETS[preset])
        identity["rate"] = f"--policies.{policy}.learning-rate {rng.choice(['1e38', '0.003', '0'])}"
    if rng.random() < 0.04:
        names = ["JAX_ENABLE_X64=1", "JAX_THREEFRY_PARTITIONABLE=0", "JAX_DEFAULT_PRNG_IMPL=rbg"]
        identity["settings"] = rng.choice(names)
    return identity


def draw_kill(rng: random.Random, share: float) -> str:
    """Return a kill with probability `share`, otherwise ""."""
    if rng.random() >= share:
        return ""
    name = rng.choices(list(SIGNALS), list(SIGNALS.values()))[0]
    when = rng.choices(["disk", "rows", "time"], [50, 30, 20])[0]
    number = {
        "disk": rng.randint(1, 70),
        "rows": rng.randint(1, 5),
        "time": round(rng.uniform(0.1, 2), 2),
    }[when]
    return f"{name}@{when}:{number}"


def some(rng: random.Random, *choices: tuple[float, str]) -> Iterator[str]:
    """Yield the words of each text with its probability."""
    for share, text in choices:
        if rng.random() < share:
            yield from text.split()


def train(
    rng: random.Random, folder: str, identity: Mapping[str, str], first: bool = False
) -> Command:
    settings = dict(identity)
    if not first and rng.random() < 0.1:
        settings |= rng.choice(
            [{"seed": "3"}, {"preset": rng.choice(list(PRESETS))}, {"settings": "JAX_ENABLE_X64=1"}]
        )
    rounded = rng.choice([0, 0, 0, rng.randint(1, STEPS - 1)])
    policy = rng.choice(PRESETS[settings["preset"]])
    words = [
        "train",
        f"{settings['preset']}.yaml",
        "--workdir",
        folder,
        *settings.get("rate", "").split(),
    ]
    words += ["--total-env-steps", rng.randint(1, 8) * STEPS - rounded]
    words += ["--seed", settings["seed"]] * (settings["seed"] != "0")
    words += some(
        rng,
        (0.05 if first else 0.85, "--resume"),
        (0.9, "--no-pictures"),
        (0.08, "--devices 2"),
        (0.1, f"--keep-checkpoints {rng.choice([1, 3])}"),
        (0.12, f"--checkpoint-every {rng.choice([1, 3])}"),
        (0.06, "--checkpoint-every-updates 3"),
        (0.06, f"--stop-at {policy}/episode_return {rng.choice([-5000, 12, 1e6])}"),
        (0.05, "--on-bad-numbers skip"),
        (0.1, "--callbacks csv"),
        (0.05, f"--updates-per-chunk {rng.choice([1, 2, 3])}"),
        (0.04, "--dry-run"),
        (0.02, "--deterministic"),
        (0.02, "--debug"),
    )
    kill = "" if "--dry-run" in words else draw_kill(rng, 0.33)
    return wdjax(*words, kill=kill, settings=tuple(filter(None, [settings.get("settings")])))


def sweep(rng: random.Random, identity: Mapping[str, str]) -> Command:
    preset = identity["preset"] if rng.random() < 0.2 else "ppo"
    rate = f"policies.{PRESETS[preset][0]}.learning_rate"
    words = ["sweep", f"{preset}.yaml", "--workdir", rng.choices("sab", [90, 5, 5])[0]]
    words += ["--set", f"total_env_steps={rng.choice([4, 4, 4, 6]) * STEPS}"]
    if rng.random() < 0.25:
        words += ["--pbt", 2, "--pbt-every-updates", 2, "--set", f"{rate}=log:1e-3:1e-1"]
        words += ["--metric", f"{PRESETS[preset][0]}/episode_return"]
    else:
        words += (
            ["--set", f"{rate}=1e-2,1e-3"]
            if rng.random() < 0.5
            else ["--seeds", rng.choice([2, 2, 3])]
        )
        words += ["--members-at-once", 1] * (rng.random() < 0.2)
    words += ["--resume"] * (rng.random() < 0.6)
    return wdjax(*words, kill=draw_kill(rng, 0.35))


def read(rng: random.Random) -> Command:
    run = rng.choices(["a", "b", "s/best", "s", "a@best", "c"], [60, 15, 10, 4, 6, 5])[0]
    seed = rng.choice([0, 5])
    return rng.choices(
        [
            wdjax("eval", run, "--episodes", 2, "--seed", seed),
            wdjax("eval", run, "a", "--episodes", 2, "--opponents", "random"),
            wdjax("report", run, "--episodes", 0, "--players", rng.choice([0, 0, 1])),
            wdjax("report", run, "a", "--episodes", 2, "--players", 0),
            wdjax("export", run),
            wdjax("render", run, "--output", f"{run.partition('@')[0]}/x.html"),
            wdjax("diff", run, "b"),
            wdjax("list"),
        ],
        [38, 6, 14, 6, 8, 6, 20, 2],
    )[0]


def shell(rng: random.Random, folder: str) -> Command:
    """Return a file operation by a user. NEWEST is replaced by the newest checkpoint."""
    lines = [
        f"rm {folder}/metrics.jsonl",
        f"truncate -s -9 {folder}/metrics.jsonl",
        f"rm -r {folder}/checkpoints/NEWEST",
        f"truncate -s 3 {folder}/checkpoints/NEWEST/host/metadata",
        f"rm -r {folder}/checkpoints/NEWEST/state",
        f"rm {folder}/checkpoints/NEWEST/sizes.json",
        f"mv {folder} c",
        f"cp -r {folder} c",
        f"rm -r {folder}",
        f"rm -r {folder}/best",
        "mv c b",
        f"mkdir {folder}",
    ]
    return Command.parse(rng.choice(lines))


def wrong(rng: random.Random, folder: str, identity: Mapping[str, str]) -> Command:
    """Return a command that must be rejected."""
    preset = f"{identity['preset']}.yaml"
    return rng.choice(
        [
            wdjax(
                "train",
                preset,
                "--workdir",
                folder,
                "--resume",
                "--total-env-steps",
                rng.choice(["0", "-32", "x"]),
            ),
            wdjax("train", preset, "--workdir", folder, "--resume", "--num-envs", "0"),
            wdjax("train", preset, "--workdir", folder, "--resume", "--devices", "3"),
            wdjax(
                "train", preset, "--workdir", folder, "--resume", "--stop-at", "agent/nothing", "3"
            ),
            wdjax(
                "train", preset, "--workdir", folder, "--resume", "--policies.unknown.gamma", "0.5"
            ),
            wdjax("train", "nothing.yaml", "--workdir", folder, "--resume"),
            wdjax("train", preset, "--workdir", folder, "--resume", "--callbacks", "nothing"),
            wdjax("sweep", preset, "--workdir", "s", "--set", "nothing=1,2"),
            wdjax("eval", "a", "--episodes", "0"),
            wdjax("report", "a", "--output", "a/x.txt"),
            wdjax("export", "a", "--policies", "unknown"),
            wdjax("resume", "a"),
            wdjax("diff", "a"),
        ]
    )
