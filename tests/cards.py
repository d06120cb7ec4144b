"""Lower programs for NVIDIA GPUs on a machine without one."""

import re

import jax
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

# an RTX 4090 is of the L4's generation
CARDS = ("NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA H200", "NVIDIA B200")


def for_card(platform="cuda", card="NVIDIA H200"):
    """Return a context in which programs of one device are lowered for a GPU.

    jax 0.11 and newer need its kind.
    """
    device = AbstractDevice(device_kind=card, num_cores=None, platform=platform)
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


def lowered(function, *operands, platform="cuda", card="NVIDIA H200"):
    """Return the text of a function's program for a GPU."""
    with for_card(platform, card):
        return jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,)).as_text()


def kernels_in(text):
    """Return the names of the kernels in the text of a program."""
    calls = [line for line in text.splitlines() if "xla.gpu.triton" in line]
    return {name for line in calls for name in re.findall(r'name = "(\w+)"', line)}
