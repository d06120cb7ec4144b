"""wdjax list."""

from rich.console import Console

from wdjax.envs import list_envs
from wdjax.train import list_presets
from wdjax.train.load import preset_path


def list_all(arguments: list[str]) -> None:
    """wdjax list"""
    if arguments:
        raise ValueError(f"wdjax list takes no arguments, not {' '.join(arguments)}")
    console = Console(highlight=False)
    console.print("environments:", *list_envs(), sep="\n  ")
    console.print("  gymnax:NAME, jaxmarl:NAME (those of the libraries, where they are installed)")
    console.print("presets:")
    for name in list_presets():
        purpose = preset_path(name).read_text(encoding="utf8").splitlines()[0].removeprefix("# ")
        console.print(f"  {name:32s}{purpose}", markup=False, soft_wrap=True)
