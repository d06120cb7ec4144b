"""Whether the kernel of `wdjax.play` plays the same as a scan of the same step, on this device.

    python -m wdjax.experiments.benchmarks.agreement          # the games of classic control, one after the other
"""

import functools

import jax
import numpy as np

import wdjax
from wdjax.experiments.benchmarks.rows import GAMES
from wdjax.playing import PlayState, Transition, play, play_step, start_play, uniform_action


def main() -> None:
    """Compares all games; raises RuntimeError at the first that disagrees."""
    for game in GAMES:
        print(compare(game), flush=True)


def compare(game: str, num_envs: int = 10_000, num_steps: int = 50) -> str:
    """Plays by the kernel and by a scan from the same state. Returns how far they agree, in words.

    Raises:
        RuntimeError: where an action differs, or more than a hundredth of the replicas, in what is counted.
    """
    env, params = wdjax.make(game)

    def policy(key: jax.Array, obs: jax.Array) -> jax.Array:
        return uniform_action(env.action_space(params), key)

    start = jax.jit(functools.partial(start_play, env, params, num_envs=num_envs))(jax.random.key(0))

    def record(memory: None, step: Transition) -> tuple[None, tuple]:
        return None, (step.action, step.next_obs, step.over, step.episode_length)

    def scan(state: PlayState, _: None) -> tuple[PlayState, tuple]:
        state, step = jax.vmap(lambda state: play_step(env, params, policy, state))(state)
        return state, record(None, step)[1]

    of_kernel = jax.jit(lambda state: play(env, params, policy, state, num_steps, record)[2])(start)
    of_scan = jax.jit(lambda state: jax.lax.scan(scan, state, length=num_steps)[1])(start)
    (action, obs, over, length), (same_action, same_obs, same_over, same_length) = jax.device_get((of_kernel, of_scan))
    agree = ((over == same_over) & (length == same_length)).all(axis=0)
    difference = np.abs(obs - same_obs)[:, agree].max()
    text = (
        f"{game}, {num_envs:,} envs, {num_steps} steps, kernel against scan: actions differ by "
        f"{np.abs(action - same_action).max():.1e} at most, ends agree in {agree.mean():.2%} of the replicas "
        f"({over.sum():,} ends), there observations differ by {difference:.1e} at most"
    )
    if np.abs(action - same_action).max() > 1e-6 or agree.mean() < 0.99:
        raise RuntimeError(text)
    return text


if __name__ == "__main__":
    main()
