"""Pictures that move: a scene at any time, written as an animation or as one figure.

Reads: a `Scene`.  Produces: GIF, PNG, PDF or SVG files, written as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.viz import style
from warpmpc.viz.files import replaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

ANIMATIONS, FIGURES = (".gif",), (".png", ".pdf", ".svg")
MOST_FRAMES = 75
ANIMATION_DPI = 88
LAST_FRAME_S = 2.0  # how long an animation rests at its end
DURATION_S = (5.0, 12.0)  # an animation takes at least and at most so long
LEAST_FRAME_S = 0.02  # viewers show shorter ones slowly
_COLORS, _ALMOST_WHITE = 200, 249


class Scene(Protocol):
    """A figure that can show any time of a simulation."""

    figure: Figure

    def show(self, step: int) -> None:
        """Moves everything to a time, counted in steps; everything before it stays visible."""
        ...

    def show_still(self) -> None:
        """Shows the whole simulation in one picture."""
        ...


def check_suffix(path: str | Path) -> Path:
    """Refuses files that cannot be written, before any work is done."""
    path = Path(path)
    known = (*ANIMATIONS, *FIGURES)
    if path.suffix.lower() not in known:
        raise SettingsError(
            f"{path} must end in one of {', '.join(known)}; .gif is an animation, the others are "
            "figures."
        )
    return path


def write_scene(
    scene: Scene,
    steps: int,
    dt: float,
    path: str | Path,
    report: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes an animation of the whole simulation, or a figure of its end.

    Args:
        scene: The scene to draw.
        steps: The last step.
        dt: Time between two steps [s]; animations run in real time, short ones slower.
        path: The suffix decides.
        report: Told how many frames of all are drawn.
    """
    path = check_suffix(path)
    if path.suffix.lower() in FIGURES:
        scene.show_still()
        return style.save(scene.figure, path)
    times = np.unique(np.linspace(0, steps, min(steps + 1, MOST_FRAMES)).round().astype(int))
    frames: list[Image] = []
    for number, step in enumerate(times.tolist()):
        scene.show(step)
        frames.append(_picture(scene.figure))
        if report is not None:
            report(number + 1, times.size)
    seconds = float(np.clip(dt * steps, *DURATION_S))
    each = max(seconds / times.size, LEAST_FRAME_S)
    durations = [round(1000 * each)] * (len(frames) - 1) + [round(1000 * LAST_FRAME_S)]
    first, *rest = _same_colors(frames)
    with replaced(path) as partial:
        first.save(partial, save_all=True, append_images=rest, duration=durations, loop=0)
    return path


def _picture(figure: Figure) -> Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure.set_dpi(ANIMATION_DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def _same_colors(frames: list[Image]) -> list[Image]:
    """Frames with one palette and without dithering: nothing flickers, and files stay small."""
    from PIL import Image

    chosen = [frames[i] for i in {0, len(frames) // 3, 2 * len(frames) // 3, len(frames) - 1}]
    height = sum(frame.height for frame in chosen)
    sheet = Image.new("RGB", (frames[0].width, height))
    for place, frame in enumerate(chosen):
        sheet.paste(frame, (0, place * frame.height))
    palette = sheet.quantize(_COLORS, method=Image.Quantize.MEDIANCUT)
    found = np.array(palette.getpalette()).reshape(-1, 3)
    found[(found > _ALMOST_WHITE).all(axis=1)] = 255  # the mean of white and its neighbours is not
    palette.putpalette(found.ravel().tolist())
    return [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
