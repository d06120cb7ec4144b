"""Where encoders were before version 0.2: wdjax.train.networks.encoders."""

from wdjax.train.networks.encoders import (  # noqa: F401
    Attention,
    DeepSets,
    Encoder,
    FlatEncoder,
    register_encoder,
)
