"""Former location of wdjax.train.networks.encoders, until version 0.1."""

from wdjax.train.networks.encoders import (  # noqa: F401
    Attention,
    DeepSets,
    Encoder,
    FlatEncoder,
    register_encoder,
)
