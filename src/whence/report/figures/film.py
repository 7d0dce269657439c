"""The film of a tracked training: one frame for each record, as an animated image or a page with a slider."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whence.engine.files import require_folder
from whence.errors import BadOption, need, one_of
from whence.extras.tracking.track import Track
from whence.report.figures import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Column = Literal["explained", "identified", "variance_share", "std"]
COLUMNS = ("explained", "identified", "variance_share", "std")
SUFFIXES = (".gif", ".webp", ".png", ".html")
RESOLUTION = 110  # dots in an inch
HOLD = 6  # frames for which the last one is held

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Training film</title>
<style>body{{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}}
img{{max-width:100%;display:block}}input{{width:100%;accent-color:#0072B2}}
button{{font:inherit;padding:.2rem .8rem;margin-right:1rem}}</style>
<h1>Uncertainty by layer during training</h1>
<img id="frame" alt="Bars for each layer at the chosen step, and the loss up to it">
<p><button id="play" type="button">Play</button><label>step <output id="step"></output>
<input id="slider" type="range" min="0" max="{last}" value="0" aria-label="step"></label></p>
<script>const frames=[{frames}],steps=[{steps}];const image=document.getElementById("frame"),
slider=document.getElementById("slider"),step=document.getElementById("step"),play=document.getElementById("play");
let timer=null;function show(){{image.src="data:image/png;base64,"+frames[slider.value];step.value=steps[slider.value]}}
function stop(){{clearInterval(timer);timer=null;play.textContent="Play"}}
slider.oninput=()=>{{stop();show()}};play.onclick=()=>{{if(timer){{stop();return}}play.textContent="Pause";
if(+slider.value===frames.length-1)slider.value=0;timer=setInterval(()=>{{if(+slider.value===frames.length-1)stop();
else{{slider.value=+slider.value+1;show()}}}},{milliseconds})}};show();</script></html>
"""


def film(track: Track, path: str | Path, of: Column = "explained", seconds: float = 0.25) -> Path:
    """Write the film of a track: bars for each layer, record by record, beside their course and the loss.

    The ending decides: ``.gif``, ``.webp`` or ``.png`` are animated images, ``.html`` is one page with a slider, which
    needs no connection. ``seconds`` is the time of a frame.
    """
    one_of(of, COLUMNS, "of")
    path = require_folder(path, "the film ")
    one_of(path.suffix.lower(), SUFFIXES, "ending of a film")
    if not seconds > 0:
        raise BadOption(f"seconds={seconds} must be positive.")
    steps = [record.step for record in track.records if record.layers]
    if not steps:
        raise BadOption("the track has no record of a layer yet: call step() in the training loop.")
    frames = [_png(frame(track, place, of)) for place in range(len(steps))]
    if path.suffix.lower() == ".html":
        coded = ",".join(f'"{base64.b64encode(data).decode()}"' for data in frames)
        words = {"last": len(frames) - 1, "frames": coded, "steps": ",".join(map(str, steps))}
        path.write_text(PAGE.format(**words, milliseconds=round(1000 * seconds)), encoding="utf-8")
        return path
    images = [need("PIL.Image", "report").open(io.BytesIO(data)).convert("RGB") for data in frames]
    images += [images[-1]] * HOLD
    more = {"append_images": images[1:], "save_all": True, "duration": round(1000 * seconds), "loop": 0}
    images[0].save(path, **more)
    return path


def frame(track: Track, place: int, of: Column = "explained") -> Figure:
    """One frame: the layers at one of the records, their course up to it, and the loss."""
    records = [record for record in track.records if record.layers]
    names = canvas.ordered(layer.name for layer in records[0].layers)
    values = [[getattr(layer, of) for layer in record.layers] for record in records]
    steps, now = [record.step for record in records], records[place]
    top = max((v for row in values for v in row if v is not None), default=1.0)
    size = (7.6, max(3.2, 1.4 + 0.22 * len(names)))
    figure, (left, *rest) = canvas.panels(None, 2, 2, size, width_ratios=(3, 4))
    course, (bars, loss) = left[1], (left[0], rest[0][1])
    rest[0][0].set_axis_off()
    bars.set_subplotspec(bars.get_subplotspec().get_gridspec()[:, 0])  # type: ignore[union-attr]
    colours = canvas.layer_colours(len(names))
    bars.barh(range(len(names)), canvas.numbers(values[place]), 0.7, color=colours)
    canvas.name_rows(bars, names)
    bars.set_xlim(0, 1.05 * top)
    canvas.tidy(bars, canvas.UNITS[of], "", f"step {now.step}", "x")
    for i, colour in enumerate(colours):
        course.plot(steps, canvas.numbers([row[i] for row in values]), color=colour, linewidth=1, alpha=0.25)
        course.plot(
            steps[: place + 1], canvas.numbers([row[i] for row in values[: place + 1]]), color=colour, linewidth=1.5
        )
    course.set_ylim(0, 1.05 * top)
    canvas.tidy(course, y=of.replace("_", " "), grid="y")
    _losses(loss, records, place)
    for panel in (course, loss):
        panel.axvline(now.step, color=canvas.GREY, linewidth=0.8, linestyle=":")
        panel.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
    return figure


def _losses(ax: Any, records: list[Any], place: int) -> None:
    """On the training subset and on the probe, as far as they are known."""
    steps = [record.step for record in records]
    named = (("loss", "training", canvas.PALETTE[0]), ("probe_loss", "probe", canvas.PALETTE[3]))
    for column, label, colour in named:
        found = canvas.numbers([getattr(record, column) for record in records])
        ax.plot(steps, found, color=colour, linewidth=1, alpha=0.25)
        ax.plot(steps[: place + 1], found[: place + 1], color=colour, linewidth=1.5, label=label)
    ax.set_ylim(bottom=0)
    canvas.tidy(ax, "step", "loss (nats)", grid="y")
    ax.legend(frameon=False, fontsize=8, loc="upper right")


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=RESOLUTION)
    return stream.getvalue()
