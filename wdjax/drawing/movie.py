"""Pictures as files: PNG, GIF with one palette for all frames, MP4, and text (SVG, HTML)."""

import itertools
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from wdjax.drawing.raster import rgb
from wdjax.files import new_file

# Function from indices of frames to their pictures, [height, width, 4] uint8 RGBA each. All
# pictures may share one buffer.
Draw = Callable[[Iterable[int]], Iterator[np.ndarray]]

PALETTE_COLORS = 256  # size of the palette that all frames of a GIF share
SAMPLES = 6  # frames from which the palette is chosen


def write_text(path: str | Path, text: str) -> Path:
    """Write a text, and missing folders, and return the path."""
    path = _with_folder(path)
    with new_file(path, "w") as file:
        file.write(text)
    return path


def _with_folder(path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_frames(
    path: str | Path,
    draw: Draw,
    num_frames: int,
    fps: float,
    hold: float,
    keep: Iterable[str] = (),
) -> Path:
    """Write frames as .gif or .mp4, or the last one as .png, and return the path.

    Args:
        path: The file to write.
        draw: Draws frames by their indices.
        num_frames: The number of frames.
        fps: Frames per second.
        hold: Seconds for which the last frame is shown.
        keep: Names of colors that a GIF must show exactly.
    """
    from PIL import Image

    path = _with_folder(path)
    with new_file(path) as file:
        if path.suffix.lower() == ".mp4":
            last = [num_frames - 1] * round(hold * fps)
            _encode(file.name, path, draw([*range(num_frames), *last]), fps)
        elif path.suffix.lower() == ".png":
            (pixels,) = draw([num_frames - 1])
            # Level 3 is faster than the default level 6, for a slightly larger file.
            Image.fromarray(pixels[..., :3]).save(file, format="PNG", compress_level=3)
        else:
            _save_gif(file, draw, num_frames, fps, hold, keep)
    return path


def _save_gif(
    file: IO[bytes], draw: Draw, num_frames: int, fps: float, hold: float, keep: Iterable[str]
) -> None:
    samples = sorted({int(t) for t in np.linspace(0, num_frames - 1, SAMPLES)})
    palette = choose_palette([codes_of(frame) for frame in draw(samples)], keep)
    images = to_images(map(codes_of, draw(range(num_frames))), palette)
    durations = [round(1000 / fps)] * num_frames  # milliseconds
    durations[-1] = max(durations[-1], round(1000 * hold))
    options = {"append_images": images, "duration": durations, "loop": 0, "optimize": False}
    next(images).save(file, format="GIF", save_all=True, **options)


def _encode(path: str, name: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    """Encode frames as an H.264 video by piping them to ffmpeg.

    Args:
        path: The temporary file to write.
        name: The final file, for error messages.
        frames: The frames.
        fps: Frames per second.

    Raises:
        OSError: If ffmpeg fails. The message contains ffmpeg's error output.
    """
    first = next(frames)
    height, width = first.shape[:2]
    options = (
        f"ffmpeg -y -loglevel error -f rawvideo -pix_fmt rgba -s {width}x{height} -r {fps:g} -i - "
        "-vf pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white -c:v libx264 -preset veryfast "
        "-pix_fmt yuv420p -crf 20 -movflags +faststart -f mp4"
    )
    # With the prefix "file:", ffmpeg reads "-a" not as an option and "a:b" not as a protocol.
    command = [*options.split(), f"file:{path}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:
        try:
            for frame in itertools.chain([first], frames):
                cast(IO[bytes], ffmpeg.stdin).write(frame.tobytes())
        except BrokenPipeError:  # ffmpeg's error output, read below, contains the reason
            pass
        _, stderr = ffmpeg.communicate()
    if ffmpeg.returncode:
        raise OSError(f"ffmpeg could not write {name}: {stderr.decode(errors='replace').strip()}")


def codes_of(pixels: np.ndarray) -> np.ndarray:
    """Return the color codes red + 2^8 green + 2^16 blue of RGBA pixels [..., 4] uint8."""
    return pixels.view("<u4")[..., 0] & 0xFFFFFF


def colors_of(code: np.ndarray) -> np.ndarray:
    """Return the RGB colors [..., 3] uint8 of color codes [...] (see `codes_of`)."""
    return np.ascontiguousarray(code, "<u4")[..., None].view(np.uint8)[..., :3]


def choose_palette(frames: Iterable[np.ndarray], keep: Iterable[str]) -> np.ndarray:
    """Return a palette for frames, [at most PALETTE_COLORS, 3] uint8.

    The colors in `keep` and the most common colors are exact, so that thin lines keep their color.
    The remaining entries approximate all other colors, such as those at antialiased edges.

    Args:
        frames: Arrays of color codes (see `codes_of`).
        keep: Names in `COLORS`.
    """
    from PIL import Image

    codes, counts = np.unique(np.concatenate([*map(np.ravel, frames)]), return_counts=True)
    if len(codes) <= PALETTE_COLORS:
        return colors_of(codes)
    kept = np.array([(*rgb(name), 0) for name in keep]).reshape(-1, 4)
    kept = codes_of(np.round(255 * kept).astype(np.uint8))
    commonest = codes[np.argsort(-counts, kind="stable")[: PALETTE_COLORS // 4]]
    exact = np.union1d(kept, commonest)
    # Each color has the same weight here, so that rare hues are represented too.
    image = Image.fromarray(colors_of(np.setdiff1d(codes, exact))[None])
    count = PALETTE_COLORS - len(exact)
    shades = image.quantize(count, kmeans=1, dither=Image.Dither.NONE).getpalette()
    return np.concatenate([colors_of(exact), np.array(shades, np.uint8).reshape(-1, 3)])


def to_images(frames: Iterable[np.ndarray], palette: np.ndarray) -> Iterator[Any]:
    """Yield each frame as a palette image, with every color mapped to the nearest palette color.

    Pillow's own mapping is coarser and turns white into light grey.

    Args:
        frames: Arrays of color codes (see `codes_of`).
        palette: The colors, [P, 3] uint8.
    """
    from PIL import Image

    colors = palette.astype(np.float32)
    # Palette index of each color code, -1 until the color first occurs.
    nearest = np.full(1 << 24, -1, np.int16)
    for frame in frames:
        new = np.unique(frame[nearest[frame] < 0])
        # |new - color|^2 without |new|^2, which does not affect the minimum
        distance = (colors**2).sum(axis=1) - 2 * colors_of(new).astype(np.float32) @ colors.T
        nearest[new] = np.argmin(distance, axis=1)
        image = Image.fromarray(nearest[frame].astype(np.uint8))
        image.putpalette(palette.tobytes())
        yield image
