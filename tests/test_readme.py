"""What the README shows, runs."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf8"), re.DOTALL)


@pytest.mark.slow  # they train: `.ci/run` has the time, `make test` must stay short
@pytest.mark.parametrize(
    "block", BLOCKS, ids=["notebook", "library", "adapters", "own_environment", "own_algorithm", "sweep"]
)
def test_python_block_runs(block):
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})


def test_pictures_are_there():
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README.read_text(encoding="utf8")):
        assert (README.parent / path).stat().st_size > 10_000
