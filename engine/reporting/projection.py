"""Embeddings in two dimensions.

Legend: S segments, C classes, D width.
"""

from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from data_tools.pages.page import Figures, Panel
from data_tools.pages.svg import COLORS, draw
from engine.reporting.outputs import Outputs

PROJECTIONS: Final = {"pca": "principal components", "tsne": "t-SNE"}
"""Name of a projection -> its title."""

_MAX_SEGMENTS = 2000
_MAX_CLASSES = 6
_MAX_PATIENTS = 10
_OTHERS = "#8c96a0"


def project(embedding: NDArray[np.floating[Any]], method: str) -> tuple[NDArray[np.float64], str]:
    """Returns embeddings [S, D] in two dimensions [S, 2], and a note on what the plane shows.

    Args:
        embedding: [S, D], where S is at least 3.
        method: one of PROJECTIONS.
    """
    centered = embedding.astype(np.float64) - embedding.mean(0, dtype=np.float64)
    if method == "tsne":
        perplexity = min(30.0, (len(centered) - 1) / 3)
        plane = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(centered)
        return plane, "near neighbors are meaningful; distances between clusters and sizes of clusters are not"
    pca = PCA(2, svd_solver="full").fit(centered)
    share = float(np.nan_to_num(pca.explained_variance_ratio_).sum())
    return pca.transform(centered), f"the plane explains {share:.0%} of the variance"


def class_projection(outputs: Outputs, method: str) -> Figures | None:
    """Returns a panel for each of the most frequent classes; ``None`` without embeddings."""
    embedding, targets = outputs.embedding, outputs.segment_targets
    if embedding is None or len(embedding) < 3:
        return None
    rows = _spread(len(embedding), _MAX_SEGMENTS)
    plane, note = project(embedding[rows], method)
    if outputs.definition.kind == "regression":
        panels = [_value_panel(plane, targets[rows, place], name) for place, name in enumerate(outputs.classes[:_MAX_CLASSES])]
        return Figures(_caption(len(rows), method, note) + " Darker points have higher values.", panels)
    order = np.argsort(-targets.sum(0), kind="stable")[:_MAX_CLASSES].tolist()
    panels = [
        _class_panel(plane, targets[rows, place] > 0, outputs.classes[place]) for place in order if targets[:, place].any()
    ]
    return Figures(_caption(len(rows), method, note) + " Each panel highlights the segments of one class.", panels)


def patient_projection(
    embeddings: tuple[NDArray[Any], NDArray[Any]], patients: tuple[NDArray[Any], NDArray[Any]], method: str
) -> Figures | None:
    """Returns gallery (circles) and probe (crosses), with some patients in colors; ``None`` if there are too few.

    Args:
        embeddings: embeddings of the gallery and the probes, [G, D] and [P, D].
        patients: patients of the gallery and the probes, [G] and [P].
        method: one of PROJECTIONS.
    """
    together = np.concatenate(embeddings)
    is_probe = np.arange(len(together)) >= len(embeddings[0])
    patient = np.concatenate(patients)
    unique = np.unique(patients[1])
    keep = unique[_spread(len(unique), _MAX_SEGMENTS // 2)]
    rows = np.flatnonzero(np.isin(patient, keep))
    if len(rows) < 3:
        return None
    # As in matching, only directions count.
    unit = together[rows] / np.linalg.norm(together[rows], axis=1, keepdims=True)
    plane, note = project(unit, method)
    colored = keep[_spread(len(keep), _MAX_PATIENTS)].tolist()

    def plot(axes: Axes) -> None:
        for marker, own in (("o", ~is_probe[rows]), ("x", is_probe[rows])):
            axes.scatter(plane[own][:, 0], plane[own][:, 1], s=14, marker=marker, color=_OTHERS, linewidths=0.8, alpha=0.45)
            for number, name in enumerate(colored):
                chosen = own & (patient[rows] == name)
                axes.scatter(
                    plane[chosen][:, 0],
                    plane[chosen][:, 1],
                    s=46,
                    marker=marker,
                    color=COLORS[number % len(COLORS)],
                    linewidths=1.8,
                )
        _clean(axes)

    caption = f"{_caption(len(rows), method, note)} Circles: gallery; crosses: probes; {len(colored)} patients are colored."
    return Figures(caption, [Panel(draw(plot, (4.4, 3.4)), f"Embeddings of {len(keep)} patients in two dimensions")])


def _class_panel(plane: NDArray[np.float64], is_in: NDArray[np.bool_], name: str) -> Panel:
    def plot(axes: Axes) -> None:
        axes.scatter(plane[~is_in][:, 0], plane[~is_in][:, 1], s=7, color=_OTHERS, alpha=0.45, linewidths=0)
        axes.scatter(plane[is_in][:, 0], plane[is_in][:, 1], s=10, color=COLORS[1], alpha=0.85, linewidths=0)
        axes.set_title(f"{name} ({int(is_in.sum())})", loc="left")
        _clean(axes)

    return Panel(draw(plot), f"Embeddings in two dimensions, {int(is_in.sum())} segments of {name} among {len(plane)}")


def _value_panel(plane: NDArray[np.float64], values: NDArray[np.float64], name: str) -> Panel:
    def plot(axes: Axes) -> None:
        axes.scatter(plane[:, 0], plane[:, 1], s=10, c=values, cmap="viridis_r", alpha=0.85, linewidths=0)
        axes.set_title(name, loc="left")
        _clean(axes)

    return Panel(draw(plot), f"Embeddings in two dimensions, colored by {name}")


def _caption(num_segments: int, method: str, note: str) -> str:
    return f"Embeddings of {num_segments:,} segments, {PROJECTIONS[method]}: {note}."


def _clean(axes: Axes) -> None:
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])


def _spread(size: int, most: int) -> NDArray[np.int64]:
    """Returns at most ``most`` rows of ``size``, evenly spaced."""
    rows: NDArray[np.int64] = np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64))
    return rows
