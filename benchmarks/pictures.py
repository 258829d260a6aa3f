"""Results as pictures, PNG and SVG; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures import Results
from benchmarks.report import NAMES
from benchmarks.servers import module

BLUE, GREY, ORANGE, RED, GREEN = "#1f5fbf", "#8a919c", "#e08214", "#c0392b", "#3a8a5f"
COLOURS = {
    "ClusterMutex": BLUE,
    "bare floor": GREY,
    "etcd3 Lock": ORANGE,
    "redis-py Lock, in memory": RED,
    "redis-py Lock, appendfsync always": RED,
    "kazoo Lock, ZooKeeper": GREEN,
    "pottery Redlock, five Redis": RED,
}
INK = "#22272e"


def draw(results: Results, folder: Path) -> None:
    """Draw a picture of each section that was measured.

    Raises:
        Missing: matplotlib is not installed.
    """
    module("matplotlib").use("Agg")  # needs no screen
    plt = module("matplotlib.pyplot")
    plt.style.use(Path(__file__).with_name("pictures.mplstyle"))
    for name, (size, paint, panels) in _PICTURES.items():
        if name in results["sections"]:
            figure, axes = plt.subplots(1, panels, figsize=size)
            paint(figure, axes, results["sections"][name])
            figure.savefig(folder / f"{name}.png")
            # No date in the file: the same results make the same picture.
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)


def _cycle(_figure: Any, axes: Any, section: Results) -> None:
    """Bars of the medians, the fastest on top, with a mark at the p99."""
    names = sorted(section, key=lambda name: -section[name]["median"])
    medians, p99s = ([section[name][key] * 1e3 for name in names] for key in ("median", "p99"))
    positions = range(len(names))
    axes.barh(positions, medians, color=[COLOURS[name] for name in names], height=0.62)
    axes.hlines(positions, medians, p99s, color=INK, linewidth=0.8)
    axes.plot(p99s, positions, "|", color=INK, markersize=9)
    labels = [f"{name}  {median:.2f}" for name, median in zip(names, medians, strict=True)]
    axes.set_yticks(positions, labels)
    axes.get_yticklabels()[names.index("ClusterMutex")].set_fontweight("bold")
    axes.grid(visible=False, axis="y")
    axes.set(
        xlim=(0, None),
        xlabel="milliseconds; the bar is the median, the mark the 99th percentile",
        title="Lock and unlock, nobody else wants it",
    )


def _handover(figure: Any, axes: Any, section: list[Results]) -> None:
    """Lines over the length of the line: how long, and how many requests."""
    left, right = axes
    for key in ("etcd3", "ours", "floor"):
        rows = [row for row in section if row["contender"] == key and not row["busy"]]
        line = [row["waiters"] for row in rows]
        colour = COLOURS[NAMES[key]]
        style: dict[str, Any] = {"color": colour, "marker": "o", "linewidth": 2, "zorder": 3}
        if rows:
            left.plot(line, [row["median"] * 1e3 for row in rows], label=NAMES[key], **style)
            p99s = [row["p99"] * 1e3 for row in rows]
            left.plot(line, p99s, color=colour, linestyle=":", linewidth=1.4)
            right.plot(line, [row["requests"] for row in rows], **style)
    left.plot([], [], color=INK, label="median")
    left.plot([], [], color=INK, linestyle=":", label="99th percentile")
    _over_waiters(left, "milliseconds", "From release to the next holder")
    _over_waiters(right, "requests", "Requests that etcd serves for it")
    figure.legend(loc="outside lower center", ncols=5)


def _over_waiters(axes: Any, what: str, title: str) -> None:
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    low, high = axes.get_ylim()
    ticks = [digit * 10**power for power in range(-2, 5) for digit in (1, 2, 5)]
    axes.set_yticks([tick for tick in ticks if low * 0.7 <= tick <= high * 1.4])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set(xlabel="waiters in line", ylabel=what, title=title)


def _throughput(figure: Any, axes: Any, section: list[Results]) -> None:
    """Pairs of bars: threads of one process on the left, processes on the right."""
    left, right = axes
    threads = [row for row in section if row["processes"] == 1]
    processes = [row for row in section if row["threads"] == threads[0]["threads"]]
    for panel, rows, counted, what in (
        (left, threads, "threads", "threads of one process"),
        (right, processes, "processes", "processes, one thread each"),
    ):
        positions = range(len(rows))
        for shift, key in ((-0.2, "floor"), (0.2, "ours")):
            name, where = NAMES[key], [position + shift for position in positions]
            heights = [row[key] for row in rows]
            panel.bar(where, heights, width=0.38, color=COLOURS[name], label=name)
        panel.set_xticks(list(positions), [str(row[counted]) for row in rows])
        panel.grid(visible=False, axis="x")
        panel.set_xlabel(what)
    left.set_title("Cycles a second")
    top = max(panel.get_ylim()[1] for panel in axes)
    for panel in axes:
        panel.set_ylim(0, top)
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)


_PICTURES: dict[str, tuple[tuple[float, float], Any, int]] = {
    "cycle": ((8.5, 3.6), _cycle, 1),
    "handover": ((9.5, 3.8), _handover, 2),
    "throughput": ((9.5, 3.6), _throughput, 2),
}
