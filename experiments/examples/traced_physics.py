"""A thousand variants of a game's physics in one compiled program: params are traced, so they can be vmapped.

    python -m wdjax.experiments.examples.traced_physics

First CartPole under 1,000 pairs of gravity and pole length, pushed left and right in turn until the pole falls; then
Tag with taggers of 1,000 different speeds, everybody accelerating and turning at random.
"""

from typing import Any

import jax
import jax.numpy as jnp

import wdjax

NUM_VARIANTS = 1_000


def batch_params(params: Any, num: int, **changes: jax.Array) -> Any:
    """Returns params with a leading [num] on every leaf: the `changes` ([num] each), and `num` copies of the rest."""
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (num, *jnp.shape(leaf))), params
    ).replace(**changes)


def standing_steps(params: Any, key: jax.Array) -> jax.Array:
    """Returns how many of 500 steps the pole stands on a cart that is pushed left and right in turn, ()."""
    env, _ = wdjax.make("cartpole")
    _, state = env.reset(key, params)

    def step(state: Any, _: None) -> tuple[Any, jax.Array]:
        action = state.time % 2
        _, state, reward, *_ = env.step(key, state, action, params)
        return state, reward

    return jax.lax.scan(step, state, length=500)[1].sum()


def tags(params: Any, key: jax.Array) -> jax.Array:
    """Returns how many of 20 runners 5 taggers catch in 50 steps when all act at random, ()."""
    env, _ = wdjax.make("tag_continuous", num_taggers=5, num_runners=20)
    reset_key, play_key = jax.random.split(key)
    _, state = env.reset(reset_key, params)

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        action_key, step_key = jax.random.split(key)
        action = env.action_space(params).sample(action_key)
        _, state, *_, info = env.step(step_key, state, action, params)
        return state, info["tags"]

    return jax.lax.scan(step, state, jax.random.split(play_key, 50))[1].sum()


def vary_cartpole(key: jax.Array, num: int = NUM_VARIANTS) -> tuple[Any, jax.Array]:
    """Returns (params, steps that poles stand, [num]): gravity and pole length from half to twice the usual."""
    scale_key, game_key = jax.random.split(key)
    _, params = wdjax.make("cartpole")
    gravity, length = jnp.exp2(jax.random.uniform(scale_key, (2, num), minval=-1.0, maxval=1.0))
    many = batch_params(
        params, num, gravity=params.gravity * gravity, length=params.length * length
    )
    return many, jax.jit(jax.vmap(standing_steps, (0, None)))(many, game_key)


def vary_tag(key: jax.Array, num: int = NUM_VARIANTS) -> tuple[Any, jax.Array]:
    """Returns (params, tags): taggers from a tenth to four times as fast as runners, [num]."""
    _, params = wdjax.make("tag_continuous", num_taggers=5, num_runners=20)
    many = batch_params(params, num, skill_level_tagger=jnp.linspace(0.1, 4.0, num))
    return many, jax.jit(jax.vmap(tags))(many, jax.random.split(key, num))


def main() -> None:
    """Prints the mean of each fourth of the variants, from the lowest values of a parameter to the highest."""
    many, steps = vary_cartpole(jax.random.key(0))
    print(f"cartpole, {NUM_VARIANTS} variants, steps until the pole falls")
    for name in ("gravity", "length"):
        print(f"    by {name}: {by_fourths(getattr(many, name), steps)}")
    many, caught = vary_tag(jax.random.key(1))
    print(f"tag_continuous, {NUM_VARIANTS} variants, runners tagged of 20")
    print(f"    by speed of the taggers: {by_fourths(many.skill_level_tagger, caught)}")


def by_fourths(parameter: jax.Array, result: jax.Array) -> str:
    """Returns the mean result of each fourth of the variants in words."""
    fourths = result[jnp.argsort(parameter)].reshape(4, -1).mean(axis=1)
    return ", ".join(f"{mean:.1f}" for mean in fourths)


if __name__ == "__main__":
    main()
