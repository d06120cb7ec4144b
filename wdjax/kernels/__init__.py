"""Kernels for NVIDIA GPUs, in Pallas (Triton). Each has a simple version in XLA beside it, which gives the same."""

import contextlib
import importlib.util
import sys

# MLIR's bindings look for Triton's dialect by its name, `tt`, under which jaxlib has no module, and do so anew for each
# value of a kernel: half of the time that lowering one takes. What they have found they do not look for again.
DIALECT = "jaxlib.mlir.dialects.tt"
with contextlib.suppress(ImportError):  # in another jaxlib it may lie elsewhere
    if importlib.util.find_spec(DIALECT) is None:
        from jaxlib.triton import dialect

        sys.modules[DIALECT] = dialect
