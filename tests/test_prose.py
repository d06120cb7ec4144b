"""Docstrings, comments, messages and pages contain few hard phrases."""

import pytest
from prose import PARTS, count, files_of, prose_of, python_prose

MOST = 1.0  # phrases per 1,000 words


@pytest.mark.parametrize("part", PARTS)
def test_prose_is_plain(part):
    files = {path: prose_of(path, messages_only=part == "messages") for path in files_of(part)}
    phrases, words = map(sum, zip(*map(count, files.values()), strict=True))
    worst = sorted(files, key=lambda path: -count(files[path])[0])[:5]
    assert words > 300
    assert 1000 * phrases / words <= MOST, (
        f"{phrases} phrases in {words} words; python tests/prose.py {worst[0]}"
    )


def test_phrases_are_counted_in_all_kinds_of_text():
    source = """'A text {0}.'
# a comment {0}
x: int
'A field {0}.'
raise ValueError("a message {0}")
""".format("in words")
    texts = [text for _, text in python_prose(source)]
    assert count(list(enumerate(texts)))[0] == 4
    message = [text for _, text in python_prose(source, messages_only=True)]
    assert [text.split()[1] for text in message] == ["message"]
    fields = [text for _, text in python_prose(source, messages_only=True, with_fields=True)]
    assert [text.split()[1] for text in fields] == ["field", "message"]
