"""Content of the README and the pages of the site."""

import importlib.util
import re
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from wdjax.train import PPO, load_config, load_run, make_learner, register_algorithm, save_run
from wdjax.train.state import registry

pytestmark = pytest.mark.usefixtures("quick_compile")

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read(name):
    return (ROOT / name).read_text(encoding="utf8")


def code_of(name):
    """Return the blocks of Python code of a page."""
    return re.findall(r"```python\n(.*?)```", read(name), re.DOTALL)


def from_code():
    """Return the module that generates parts of pages from the code."""
    spec = importlib.util.spec_from_file_location("from_code", ROOT / "docs" / "from_code.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_how_to_index_lists_its_pages_explicitly():
    assert ":glob:" not in read("docs/how_to/index.md")


def test_export_page_names_the_six_months_of_jax():
    pages = [page.read_text(encoding="utf8") for page in PAGES]
    assert any(
        "wdjax export" in text and re.search(r"six months|6 months|180 days", text)
        for text in pages
    )


def test_reference_page_has_no_note_to_maintainers():
    assert "do not edit" not in read("experiments/reference/README.md")


def test_reference_tables_have_at_most_four_columns():
    rows = [
        line
        for line in read("experiments/reference/README.md").splitlines()
        if line.startswith("|")
    ]
    assert rows
    assert max(line.count("|") - 1 for line in rows) <= 4


def test_pages_agree_on_the_speed_of_a_workload():
    lines = [line for page in PAGES for line in page.read_text(encoding="utf8").splitlines()]
    ours = [
        line
        for line in lines
        if re.match(r"\| (`tag_gridworld`|the same as `wdjax train tag_gridworld`)", line)
    ]
    speeds = {speed for line in ours for speed in re.findall(r"^\|[^|]+\| (\d+) M ", line)}
    assert speeds
    assert len(speeds) == 1


def test_notebooks_are_executed_by_default():
    assert 'nb_execution_mode = "off" if os.environ.get("EXECUTE") == "0" else "cache"' in read(
        "docs/conf.py"
    )


def test_reference_pages_describe_type_aliases():
    text = from_code().names("wdjax.train.learning", "wdjax.train")
    assert ".. py:data:: wdjax.train.learning.Terms\n\n   terms of a loss" in text
    assert ".. autoclass:: wdjax.train.learning.Distribution\n" in text


def test_environment_pages_omit_docstrings_of_inner_functions():
    text = from_code().environment("tag_continuous", "rules")
    assert "num_own" not in text
    assert not re.search(r"^Returns? the rewards", text, re.MULTILINE)
    assert not re.search(r"^(Args|Returns|Raises):", text, re.MULTILINE)


def test_environment_pictures_follow_the_theme(tmp_path):
    module = from_code()
    module.PICTURES = tmp_path
    top = module.environment("cartpole", "picture").partition("# Spaces")[0]
    assert "cartpole.svg" in top
    assert "prefers-color-scheme:dark" in (tmp_path / "cartpole.svg").read_text(encoding="utf8")


def test_stored_pictures_follow_the_theme():
    style = read("docs/site.css")
    assert 'html_css_files = ["site.css"]' in read("docs/conf.py")
    assert "prefers-color-scheme: dark" in style
    pictures = 'article img:is([src$=".png"], [src$=".gif"])'  # of pages and of notebooks
    for dark in ('body[data-theme="dark"]', 'body:not([data-theme="light"])'):
        assert re.search(rf"{re.escape(f'{dark} {pictures}')} {{\s+filter: invert", style)


def test_commands_fit_on_a_page():
    texts = [page.read_text(encoding="utf8") for page in PAGES]
    blocks = [block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    long = [
        line
        for block in blocks
        for line in block.splitlines()
        if len(line.partition("   #")[0]) > 86
    ]
    assert not long


def test_commands_wrap_on_narrow_pages():
    assert re.search(r"\.highlight-sh pre {\s+white-space: pre-wrap", read("docs/site.css"))


def test_warp_drive_page_names_the_epsilon_of_adam():
    assert "optimizer_epsilon" in read("docs/from_warp_drive.md")


@pytest.mark.parametrize("name", ["PQN-VDN", "TransfQMIX", "SHAQ"])
def test_comparison_names_the_algorithms_of_jaxmarl(name):
    assert name in read("docs/comparison.md")


@pytest.mark.slow
def test_data_page_clones_a_policy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec("\n".join(code_of("docs/how_to/data.md")), {})
    returns = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(returns["before"]) < 50
    assert float(returns["clone"]) > 450
    assert load_run("runs/clone")[1].num_updates == 0


def test_pages_name_every_algorithm():
    own = [name for name, path in registry.ALGORITHMS.items() if "wdjax.train" in str(path)]
    for page in ("docs/limits.md", "docs/comparison.md", "docs/algorithms/index.md"):
        text = read(page)
        assert [name for name in own if name not in text] == []


def test_configuration_page_lists_the_options_of_each_algorithm():
    page, module = read("docs/reference/configuration.md"), from_code()
    for name, option in (
        ("A2C", "gae_lambda"),
        ("PPO", "clip"),
        ("DDPG", "tau"),
        ("QMIX", "double"),
    ):
        assert f"<!-- from code: configuration {name} -->" in page
        assert f"| `{option}` |" in module.configuration(name)
    assert "`clip`" not in module.configuration("A2C")
    assert "traced; above 0" in module.configuration("PPO")


@pytest.fixture
def algorithms(monkeypatch):
    """Remove algorithms registered by a test after it."""
    monkeypatch.setattr(registry, "ALGORITHMS", dict(registry.ALGORITHMS))


def test_additional_loss_term_of_the_how_to_page_is_a_valid_loss(algorithms):
    register_algorithm("Bounded", algorithm_page("class Bounded", PPO=PPO)["Bounded"])
    assert "agent/squared_value" in metrics_of("cartpole_ppo", "Bounded")


def algorithm_page(text, **names):
    """Execute the block with a text of the page on algorithms; return its names."""
    (code,) = [code for code in code_of("docs/how_to/own_algorithm.md") if text in code]
    scope = {"__name__": "page", **names}
    sys.modules.setdefault("page", types.ModuleType("page"))
    exec(code, scope)
    return scope


def metrics_of(preset, algorithm):
    """Return the names of the metrics of an update."""
    learner = make_learner(load_config(preset, **{"policies.agent.algorithm": algorithm}))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    return set(jax.eval_shape(learner.update, state)[1])


def test_kl_term_of_the_how_to_page_is_a_valid_loss(algorithms):
    algorithm_page("class KLPPO")
    assert {"agent/kl_reference", "agent/beta"} <= metrics_of("cartpole_ppo", "KLPPO")


@pytest.mark.slow
def test_reference_run_of_the_how_to_page_is_kept_by_begin(algorithms, tmp_path):
    config = load_config("cartpole_ppo")
    saved = make_learner(config).init(jax.random.key(1))
    save_run(tmp_path / "base", config, saved)
    with pytest.raises(RuntimeError, match=r"run = .*base': must not be loaded while jax traces"):
        jax.eval_shape(lambda: load_run(tmp_path / "base")[1])
    algorithm_page("class NearRun(", **algorithm_page("class KLPPO"))
    changes = {
        "policies.agent.algorithm": "NearRun",
        "policies.agent.reference": str(tmp_path / "base"),
    }
    learner = make_learner(load_config("cartpole_ppo", **changes))
    states = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), 2))
    state = jax.tree.map(lambda leaf: leaf[1], states).policies["agent"]
    expected = saved.policies["agent"].params
    jax.tree.map(np.testing.assert_array_equal, state.own["params"], expected)
    weights = [one["policy_head"]["kernel"] for one in (state.params, expected)]
    assert not np.array_equal(*weights)
    assert "agent/kl_reference" in set(jax.eval_shape(learner.update, learner.shapes)[1])


@pytest.mark.slow
def test_wrapper_of_the_how_to_page_is_an_environment():
    (code,) = [code for code in code_of("docs/how_to/own_environment.md") if "class Hidden" in code]
    scope = {"__name__": "page"}
    sys.modules.setdefault("page", types.ModuleType("page"))
    exec(code, scope)  # calls check_env
    env = scope["Hidden"](observed=(2,))
    obs, state = env.reset(jax.random.key(0), env.default_params)
    np.testing.assert_array_equal(obs, state.theta[None])


@pytest.mark.slow
@jax.numpy_rank_promotion("allow")
def test_beta_distribution_of_the_how_to_page_equals_scipy(algorithms):
    distribution = algorithm_page("class Beta:")["Beta"]((2,), (-1.0, 0.0), (1.0, 3.0))
    outputs, others = jax.random.normal(jax.random.key(0), (2, 5, 4))
    beta, other = (
        scipy.stats.beta(*(np.asarray(part, float) for part in distribution.parameters(one)))
        for one in (outputs, others)
    )
    x = distribution.sample(jax.random.key(1), outputs)
    expected = beta.logpdf(np.asarray(x, float)).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(outputs, x), expected, rtol=1e-3, atol=1e-4)
    entropy = distribution.entropy(outputs)
    np.testing.assert_allclose(entropy, beta.entropy().sum(-1), rtol=1e-3, atol=1e-4)
    grid = (np.arange(20_000)[:, None, None] + 0.5) / 20_000
    ratio = beta.pdf(grid) * (beta.logpdf(grid) - other.logpdf(grid))
    kl = distribution.kl(outputs, others)
    np.testing.assert_allclose(kl, ratio.mean(0).sum(-1), rtol=1e-2, atol=1e-3)
    action = distribution.to_space(distribution.mode(outputs))
    assert ((action > jnp.array([-1.0, 0.0])) & (action < jnp.array([1.0, 3.0]))).all()
    flat = distribution.mode(jnp.full(4, -1000.0))  # softplus is 0 in float32
    np.testing.assert_allclose(flat, 0.5, rtol=1e-4)


@pytest.mark.slow
@jax.numpy_rank_promotion("allow")
def test_beta_distribution_of_the_how_to_page_is_learned(algorithms):
    algorithm_page("class Beta:")
    assert "agent/approx_kl" in metrics_of("pendulum_ppo", "BetaPPO")
    with pytest.raises(ValueError, match=r"policies.agent: action space .*: must be a bounded Box"):
        metrics_of("cartpole_ppo", "BetaPPO")


@pytest.mark.slow
def test_algorithm_of_the_how_to_page_learns(algorithms):
    returns = algorithm_page("class Reinforce")["metrics"]["agent/episode_return"]
    assert returns[-5:].mean() > 1.5 * returns[:5].mean()
