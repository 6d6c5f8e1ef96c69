"""The one door to matplotlib: draws a `Chart` into a file.

matplotlib belongs to the extra `paceline[plots]` and is imported only when something is drawn. Not the place for
deciding what to draw (`curves.py`).
"""

from pathlib import Path

from paceline.errors import InvalidParameter
from paceline.theory.curves import Chart

FORMATS = (".png", ".svg", ".pdf")


def draw(chart: Chart, path: str | Path) -> Path:
    """Draw `chart` into `path` (.png, .svg or .pdf) and return it.

    Raises:
        InvalidParameter: matplotlib is not installed, the format is unknown or the folder does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InvalidParameter("path", f"cannot write {path.name!r}", f"end the name in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InvalidParameter("path", f"there is no folder {path.parent}", "create it first")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        remedy = "run: pip install 'paceline[plots]'"
        raise InvalidParameter("matplotlib", "is not installed, and plots need it", remedy) from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for series in chart.series:
        (line,) = axes.plot(series.x, series.y, marker="." if chart.discrete else None, label=series.label)
        if series.band is not None:
            low, high = zip(*series.band, strict=True)
            axes.fill_between(series.x, low, high, color=line.get_color(), alpha=0.15)
        if series.marked:
            at = list(series.marked)
            axes.scatter([series.x[i] for i in at], [series.y[i] for i in at], color=line.get_color(), zorder=3)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    return path
