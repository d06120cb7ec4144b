"""Which cards run kernels."""

import re

import jax

MIN_CAPABILITY = 8.0  # of NVIDIA's, Ampere (2020): where Triton begins


def can_run_kernels() -> bool:
    """Returns whether all NVIDIA GPUs of a run, if there are any, take kernels: compute capability 8.0 or more.

    Said before anything is traced: XLA would refuse the whole program. On machines without one, kernels may still be
    compiled for another, and `platform_dependent` leaves them out.
    """
    found = [str(getattr(device, "compute_capability", "")) for device in jax.devices()]
    return all(float(number) >= MIN_CAPABILITY for number in found if re.fullmatch(r"\d+\.\d+", number))
