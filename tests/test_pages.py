"""Content of the README and of the pages of the site."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read(name):
    return (ROOT / name).read_text(encoding="utf8")


def test_how_to_pages_are_listed_in_the_order_of_a_reader():
    assert ":glob:" not in read("docs/how_to/index.md")


def test_pages_agree_on_the_cost_of_deterministic():
    slower = "`--deterministic`, which is slower" in read("docs/how_to/long_runs.md")
    free = re.search(r"deterministic[^.]*costs? nothing", read("experiments/benchmarks/RESULTS.md")) is not None
    assert not (slower and free)


def test_the_page_on_export_names_the_six_months_of_jax():
    pages = [page.read_text(encoding="utf8") for page in PAGES]
    assert any("wdjax export" in text and re.search(r"six months|6 months|180 days", text) for text in pages)
