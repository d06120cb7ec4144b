"""The package as a whole: imports between its parts, import cost, contents of the wheel."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from quick import quick_environment

import wdjax

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("envs", "train", "experiments")


def run_python(code, python=sys.executable, cwd=ROOT, **environment):
    """Run code in a new process and return its output. Fail with the output."""
    result = subprocess.run(
        [python, "-c", code],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


# --- cost of imports ---


def test_import_of_the_package_does_not_import_jax():
    run_python("import sys, wdjax; assert not {'jax', 'flax', 'matplotlib'} & set(sys.modules)")


def test_imports_use_no_device_and_no_matplotlib():
    modules = [name for name, path in source_files() if path.stem not in ("drawing", "__main__")]
    # these import optional libraries
    modules = [name for name in modules if not name.startswith("wdjax.adapters._")]
    code = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
import jax.numpy
assert 'matplotlib' not in sys.modules
try:
    jax.numpy.zeros(1)
except RuntimeError:
    print('no device')
"""
    # With a platform that does not exist, any use of a device fails.
    assert run_python(code, JAX_PLATFORMS="no_such_platform").strip() == "no device"


def test_public_names_resolve_and_misspelled_ones_suggest_names():
    assert set(wdjax.__all__) == set(wdjax._HOME)
    for name in wdjax.__all__:
        assert getattr(wdjax, name) is not None
        assert name in dir(wdjax)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        wdjax.nothing  # noqa: B018
    for name, suggestion in (
        ("vectorise", "wdjax.vectorize"),
        ("load_run", "wdjax.train.load_run"),
    ):
        with pytest.raises(AttributeError, match=rf"did you mean {suggestion}\?"):
            getattr(wdjax, name)


# --- sources and imports ---


def source_files():
    """Return (module name, path) of every source file, each once."""
    # `rglob` does not follow the links in wdjax/
    files = [("wdjax", path) for path in (ROOT / "wdjax").rglob("*.py")]
    for folder in FOLDERS:
        files += [(f"wdjax.{folder}", path) for path in (ROOT / folder).rglob("*.py")]
    named = []
    for package, path in files:
        base = ROOT / "wdjax" if package == "wdjax" else ROOT / package.removeprefix("wdjax.")
        parts = [
            part for part in path.relative_to(base).with_suffix("").parts if part != "__init__"
        ]
        named.append((".".join([package, *parts]), path))
    return sorted(named)


def imports(path):
    """Yield (line, dotted name) of the imports in a file, including those in functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("link", [*(f"wdjax/{folder}" for folder in FOLDERS), "src/wdjax"])
def test_folders_are_symbolic_links(link):
    """The folders are linked into the package, and the package into src for editable installs."""
    folder = link.split("/")[1]
    assert os.readlink(ROOT / link) == f"../{folder}"
    assert (ROOT / folder / "__init__.py").is_file()


def test_imports_are_absolute():
    """With `import envs` in the root of the repository, every class would exist twice."""
    violations = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for _, path in source_files()
        for line, name in imports(path)
        if name.startswith(".") or name.split(".")[0] in FOLDERS
    ]
    assert not violations, "\n".join(violations)


def test_no_module_has_a_name_of_the_standard_library():
    """Python puts the folder of a script first on its path, where the module would hide it."""
    named = {
        path.relative_to(ROOT) for _, path in source_files() if path.stem in sys.stdlib_module_names
    }
    assert not named


# --- installation ---

TRAINING_STEP = """
import pathlib, sys
import jax, wdjax
from wdjax.train import load_config, make_learner
learner = make_learner(load_config("tag_small"))
state, metrics = learner.update(learner.init(jax.random.key(0)))
jax.block_until_ready(state)
import wdjax.experiments, wdjax.rendering
home = pathlib.Path(sys.argv[1])
for name, module in sorted(sys.modules.items()):
    if name.split(".")[0] == "wdjax" and module.__file__:
        assert home in pathlib.Path(module.__file__).parents, (name, module.__file__)
print(wdjax.__file__)
"""

BUNDLED_RUN = """
from wdjax.train import load_run
learner, state = load_run("reference:tag_continuous")
assert set(learner.config.policies) == {"tagger", "runner"}
"""

# Programs of maintainers, in a checkout only (setup.py). `wdjax bench` needs the other benchmarks.
NOT_INSTALLED = {
    f"wdjax.experiments.{name}"
    for name in (
        "benchmarks.agents",
        "benchmarks.agreement",
        "benchmarks.alternate",
        "benchmarks.card",
        "benchmarks.memory",
        "reference.__main__",
        "reference.peers",
        "reference.rerun",
        "reference.rows",
        "reference.seeds",
        "reference.team_worlds",
        "reference.world_table",
        "reference.worlds",
    )
}
SOURCE_FOLDERS = ("wdjax", "src", *FOLDERS)  # of a build
SOURCE_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
LARGEST_WHEEL = 1_200_000  # bytes


def is_installed(name):
    """Return whether a wheel contains this module: neither it nor its package is left out."""
    return not any(name == own or name.startswith(f"{own}.") for own in NOT_INSTALLED)


def installed_files():
    """Return (module name, path) of every source file in a wheel."""
    return [(name, path) for name, path in source_files() if is_installed(name)]


def test_installed_modules_do_not_import_programs_of_maintainers():
    assert {name for name, _ in source_files()} >= NOT_INSTALLED
    violations = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for _, path in installed_files()
        for line, name in imports(path)
        if not is_installed(name)
    ]
    assert not violations, "\n".join(violations)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the folder with an sdist and its wheel, built from a copy of the sources."""
    sources, folder = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in SOURCE_FOLDERS:
        shutil.copytree(ROOT / name, sources / name, symlinks=True)
    for name in SOURCE_FILES:
        shutil.copy(ROOT / name, sources)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, sources]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_container_image_copies_the_sources_of_a_build():
    text = (ROOT / "experiments" / "cluster" / "Dockerfile").read_text(encoding="utf8")
    lines = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    assert {name for line in lines for name in line} == {*SOURCE_FOLDERS, *SOURCE_FILES}


def packaged_files():
    """Return the paths in a wheel of all files but its own metadata."""
    data = [
        ROOT / "wdjax" / "py.typed",
        ROOT / "wdjax" / "drawing" / "player.html",
        ROOT / "wdjax" / "drawing" / "live.html",
        ROOT / "envs" / "climate" / "rice_regions.yaml",
    ]
    patterns = (
        "configs/*.yaml", "reference/results/*.yaml", "reference/policies/*.npz", "template/*.txt",
        "template/*.yaml",
    )  # fmt: skip
    for pattern in patterns:
        found = list((ROOT / "experiments").glob(pattern))
        assert found, pattern
        data += found
    paths = [path.relative_to(ROOT) for path in [*data, *(path for _, path in installed_files())]]
    return {("" if path.parts[0] == "wdjax" else "wdjax/") + path.as_posix() for path in paths}


def test_wheel_and_sdist_contain_exactly_the_installed_files(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (
            archive.read(name).decode() for name in names if name.endswith("entry_points.txt")
        )
    assert "wdjax = wdjax.experiments.cli:main" in entry_points
    files = {name for name in names if ".dist-info/" not in name}
    assert files == packaged_files()
    assert wheel.stat().st_size <= LARGEST_WHEEL
    with tarfile.open(sdist) as archive:
        source_names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "pyproject.toml", "README.md", "src/wdjax/__init__.py"} <= source_names


@pytest.mark.slow
def test_installed_wheel_trains_outside_the_repository(built, tmp_path):
    """The environment contains the wheel and its dependencies, but not this repository."""
    environment, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies))
    (wheel,) = built.glob("*.whl")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        site,
        wheel,
    ]
    subprocess.run(command, check=True)
    python = str(environment / "bin" / "python")
    step = f"import sys; sys.argv = ['', {str(site)!r}]\n" + TRAINING_STEP
    variables = quick_environment(PYTHONPATH="")
    assert str(site) in run_python(step + BUNDLED_RUN, python, elsewhere, **variables)
    bench = [
        python,
        "-m",
        "wdjax.experiments.cli",
        "bench",
        "cartpole_10k",
        "--small",
        "--repeats",
        "1",
    ]
    result = subprocess.run(
        bench, cwd=elsewhere, env=variables, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "env steps/s" in result.stdout


# --- checkouts without symbolic links, as on Windows ---


@pytest.fixture
def without_links(tmp_path):
    """Return a checkout in which links are files with the path that they point to."""
    (tmp_path / "wdjax").mkdir()
    for name in (
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "wdjax/__init__.py",
        "wdjax/lazy.py",
    ):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "wdjax" / "version.py", tmp_path / "wdjax")
    for name in FOLDERS:
        (tmp_path / "wdjax" / name).write_text(f"../{name}")
    return tmp_path


@pytest.mark.parametrize("command", [["setup.py", "--version"], ["-c", "import wdjax"]])
def test_checkout_without_links_explains_the_fix(without_links, command):
    result = subprocess.run(
        [sys.executable, *command], cwd=without_links, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "symbolic links, which this checkout does not contain" in last
    assert "core.symlinks=true" in last
