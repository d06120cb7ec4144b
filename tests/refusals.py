"""A helper for tests of error messages."""

from collections.abc import Callable
from typing import Any

import pytest


def refusal(function: Callable, *arguments: Any, **named: Any) -> str:
    """Return the one-line message of the error that a call raises."""
    with pytest.raises((ValueError, TypeError, OSError, ImportError)) as refused:
        function(*arguments, **named)
    sentence = str(refused.value)
    assert sentence
    assert "\n" not in sentence
    return sentence
