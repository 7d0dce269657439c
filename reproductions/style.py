"""How figures look: one colour for each method, everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Okabe and Ito's palette, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A500", "#333333",
)  # fmt: skip
COLOURS = {
    "deterministic": BLACK,
    "MC dropout": ORANGE,
    "diagonal Laplace": SKY,
    "Kronecker Laplace": BLUE,
    "factorised Gaussian": PURPLE,
    "linearised Kronecker": RED,
    "deep ensemble": GREEN,
    "SWAG": YELLOW,
}


def subplots(rows: int = 1, columns: int = 1, size: tuple[float, float] = (4.2, 3.2), **more: Any) -> tuple[Any, Any]:
    """A figure of panels, each of ``size`` inches."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    return plt.subplots(rows, columns, figsize=(size[0] * columns, size[1] * rows), layout="constrained", **more)


def layer_colours(count: int) -> list[Any]:
    """One for each layer: dark at the inputs, light at the outputs."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.05 + 0.85 * i / max(count - 1, 1)) for i in range(count)]


def layer_handles() -> list[Any]:
    """Of a legend for ``layer_colours``."""
    from matplotlib.patches import Patch

    names = ("first layer", "middle", "last layer")
    return [Patch(color=colour, label=name) for colour, name in zip(layer_colours(3), names, strict=True)]


def save(figure: Any, path: Path) -> Path:
    """As PNG; the folder is made."""
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
