"""The gradient of a loss with respect to the outputs of a network, inside a gradient kernel."""

import dataclasses

import jax
import jax.numpy as jnp

from wdjax.train.kernels.categorical import log_prob_and_entropy
from wdjax.train.kernels.layers import Ref, Shape, column
from wdjax.train.kernels.loss import Options, Study
from wdjax.train.state.engine import BatchRows, Loss, Means
from wdjax.train.state.rows import Evaluation

BOTH, POLICY, VALUE = "both", "policy", "value"  # outputs of a tower


@dataclasses.dataclass(frozen=True)
class Task:
    """Static part of the kernels of a gradient."""

    shape: Shape
    loss: Loss
    """loss of a batch, such as `PPO.loss`, which the kernels trace"""
    options: Options
    """options of the algorithm; traced fields that the loss reads are replaced"""
    study: Study
    interpret: bool

    def options_of(self, hypers_ref: Ref) -> Options:
        """Load the traced options that the loss reads."""
        read = {name: hypers_ref[i] for i, name in enumerate(self.study.read)}
        return dataclasses.replace(self.options, **read)

    def gradient_of_outputs(
        self,
        outputs: jax.Array,
        actions: list[jax.Array],
        row: BatchRows,
        part: str,
        options: Options,
    ) -> tuple[jax.Array, Means]:
        """Return (gradient of the summed loss, [B, columns], terms of the loss, [B] each).

        Both are 0 in rows that are not valid. For a tower of the policy or of the value only, the
        terms of the other one are constants without meaning.
        """
        place = self.shape.num_outputs if part == BOTH else 0  # of the value
        value = row.value if part == POLICY else column(outputs, place)
        entropy = jnp.zeros_like(value)
        log_prob = entropy if row.log_prob is None else row.log_prob
        if part != VALUE:
            log_prob, entropy, pull = log_prob_and_entropy(outputs, actions, self.shape)

        def of_rows(terms: Means) -> Means:
            return {name: jnp.where(row.valid, values, 0.0) for name, values in terms.items()}

        def loss_of(new: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, Means]:
            loss, found = self.loss(Evaluation(*new), row, options, of_rows)
            return jnp.sum(loss), found

        slopes, found = jax.grad(loss_of, has_aux=True)((log_prob, entropy, value))
        gradient = jnp.zeros_like(outputs) if part == VALUE else pull(*slopes[:2])
        if part != POLICY:
            columns = jax.lax.broadcasted_iota(jnp.int32, outputs.shape, 1)
            gradient = jnp.where(columns == place, slopes[2][:, None], gradient)
        return gradient, found
