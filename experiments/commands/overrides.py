"""Changes of fields on the command line, written alike for wdjax train and wdjax sweep.

--policies.agent.learning-rate 1e-3     hyphens and underscores are alike
--policies.all.learning-rate 1e-3       the field of every policy
--policies.all.learning-rate 1e-3,3e-3  several values, in a sweep
"""

from collections.abc import Collection, Sequence

from wdjax import all_policies
from wdjax.checks import require
from wdjax.train.storage.fields import Fields


def flags_with_values(arguments: Sequence[str]) -> list[list[str]]:
    """Split arguments before every flag; "--flag=value" is one word."""
    parts: list[list[str]] = [[]]
    for word in arguments:
        if word.startswith("--"):
            parts.append([])
        parts[-1].append(word)
    return [part for part in parts if part]


def for_each_policy(arguments: Sequence[str], policies: Collection[str]) -> list[str]:
    """Return arguments with a flag for each policy in place of `--policies.all.FIELD`."""
    found: list[str] = []
    for flag, *values in flags_with_values(arguments):
        name = flag.removeprefix("--")
        dashes = flag.removesuffix(name)
        for field in all_policies.for_each_policy({name: values}, policies):
            found += [dashes + field, *values]
    return found


def as_typed(message: str, arguments: Sequence[str], policies: Collection[str]) -> str:
    """Return a message that names `--policies.all.FIELD` in place of the flag of each policy."""
    for typed in flags_with_values(arguments):
        each = for_each_policy(typed, policies)
        if each != typed and ", ".join(each) in message:
            message = message.replace(", ".join(each), ", ".join(typed))
    return message


def as_settings(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the arguments of a sweep with `--set FIELD=VALUES` in place of `--FIELD VALUES`.

    Args:
        arguments: arguments after the preset.
        options: options of the sweep, with underscores. All other flags are fields.

    Raises:
        ValueError: for a field without a value, or a flag that is neither an option nor a field.
    """
    found: list[str] = []
    fields = Fields()
    for flag, *values in flags_with_values(arguments):
        name, _, first = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or name.replace("-", "_") in options:
            found += [flag, *values]
            continue
        text = " ".join([*[first] * bool(first), *values])
        if not text and "." not in name and fields.find(name, options) not in fields.known:
            raise ValueError(f"{flag} is not an option of wdjax sweep (see --help)")
        require(text, flag, text, "followed by VALUE or VALUE,VALUE")
        found += ["--set", f"{name}={text}"]
    return found
