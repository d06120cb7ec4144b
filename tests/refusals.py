"""How tests look at a refusal."""

from collections.abc import Callable
from typing import Any

import pytest


def refusal(function: Callable, *arguments: Any, **named: Any) -> str:
    """Returns the sentence with which a call refuses its arguments; fails where it takes them,
    or says it in lines."""
    with pytest.raises((ValueError, TypeError, OSError, ImportError)) as refused:
        function(*arguments, **named)
    sentence = str(refused.value)
    assert sentence
    assert "\n" not in sentence
    return sentence
