"""Untrusted YAML: small files that expand to billions of values or contain themselves."""

import pytest
import yaml

from wdjax.yaml_reader import read_yaml_value

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    "text", [BOMB, "[" * 60 + "]" * 60, "a: &a [*a]", "[" * 5_000], ids=range(4)
)
def test_deep_recursive_or_expanding_yaml_raises(text, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match="invalid YAML"):
        read_yaml_value(tmp_path / "config.yaml")


def test_small_aliases_are_read():
    shared = {"a": [1.5, "b"]}
    assert read_yaml_value(yaml.safe_dump({"first": shared, "second": shared})) == {
        "first": shared,
        "second": shared,
    }


def test_large_files_raise(tmp_path):
    with open(tmp_path / "config.yaml", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="at most"):
        read_yaml_value(tmp_path / "config.yaml")
