"""Identification of patients: similarities of gallery and probe, ranks, verification.

Legend: P probes, G gallery entries, D width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from data_tools.pages.page import Block, Figures, Panel, Section, Table, Text
from data_tools.pages.svg import COLORS, INK, draw
from engine.evaluation import Matching, match
from engine.options import UserError
from engine.reporting.examples import Gallery
from engine.reporting.inputs import EvaluationFolder, ScoreRow, short_name
from engine.reporting.outputs import check_arrays
from engine.reporting.projection import patient_projection

_TITLES = {
    "tar_at_far_0.01": "true acceptance rate at 1% false acceptance",
    "tar_at_far_0.001": "true acceptance rate at 0.1% false acceptance",
    "auroc": "AUROC",
}
_MAX_RANK = 20
_MAX_PROBES = 2000  # whose similarities are drawn
_NUM_BINS = 60
_ARRAYS = tuple(f"{side}{suffix}" for side in ("gallery", "probe") for suffix in ("", "_key", "_segment", "_patient"))


@dataclass(frozen=True)
class _Embeddings:
    """The arrays written for a row: gallery [G, D] and probe [P, D] with unit length."""

    gallery: NDArray[np.float32]
    probe: NDArray[np.float32]
    arrays: dict[str, NDArray[Any]]

    @property
    def patients(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.arrays["gallery_patient"], self.arrays["probe_patient"]


def identification_section(evaluation: EvaluationFolder, row: ScoreRow, gallery: Gallery, projection: str) -> Section:
    """Returns the details of a row: facts, and figures if embeddings were written."""
    section = Section(f"{row.model}, {row.method}: {len(row.leads)} leads", [_facts(row)])
    if row.rank_1_by_gallery_size:
        sizes, shares = list(row.rank_1_by_gallery_size), row.rank_1_by_gallery_size.values()
        header = ("entries in the gallery", *(f"{int(size):,}" if size.isdecimal() else size for size in sizes))
        section.blocks.append(
            Table("Expected rank-1 accuracy by size of the gallery", header, [("rank-1", *(f"{s:.3f}" for s in shares))])
        )
    embeddings = _read(evaluation, row)
    if embeddings is None:
        section.blocks.append(Text("Without embeddings (evaluate.py -o FOLDER writes them) there are no figures."))
        return section
    matching = match(embeddings.probe, embeddings.gallery, embeddings.patients[1], embeddings.patients[0])
    section.blocks += [
        Figures(
            "Similarities: cosine similarities of probe and gallery, for the same patient and for different patients. CMC "
            "curve (cumulative match characteristic): fraction of probes whose own patient is among the K most similar. "
            "Verification: whether two segments are of the same patient.",
            [_similarities(embeddings), _ranks(matching), _verification(matching)],
        ),
        *filter(None, [patient_projection((embeddings.gallery, embeddings.probe), embeddings.patients, projection)]),
        *_examples(embeddings, matching, gallery),
    ]
    return section


def _facts(row: ScoreRow) -> Table:
    defined = {name: value for name, value in row.verification.items() if value is not None}
    return Table(
        "Verification: whether two segments are of the same patient",
        ("", ""),
        [(_TITLES.get(name, short_name(name)), f"{value:.3f}") for name, value in defined.items()],
    )


def _read(evaluation: EvaluationFolder, row: ScoreRow) -> _Embeddings | None:
    arrays = evaluation.predictions(row)
    if arrays is None:
        return None
    assert evaluation.folder is not None
    file = f"{evaluation.folder / row.predictions}"
    for side in ("gallery", "probe"):
        check_arrays(arrays, tuple(name for name in _ARRAYS if name.startswith(side)), file)
    unit = []
    for side in ("gallery", "probe"):
        if arrays[side].ndim != 2 or arrays[side].dtype.kind != "f":
            raise UserError(f"{file}: is damaged ('{side}' is not a matrix of floats); run engine/evaluate.py again")
        unit.append(arrays[side] / np.maximum(np.linalg.norm(arrays[side], axis=1, keepdims=True), 1e-12))
    return _Embeddings(unit[0], unit[1], arrays)


def _similarities(embeddings: _Embeddings) -> Panel:
    rows = np.unique(np.linspace(0, len(embeddings.probe) - 1, min(len(embeddings.probe), _MAX_PROBES)).astype(np.int64))
    edges = np.linspace(-1, 1, _NUM_BINS + 1)
    counts = np.zeros((2, _NUM_BINS), dtype=np.int64)
    gallery_patients, probe_patients = embeddings.patients
    for row in rows.tolist():  # one at a time: the product of both sizes may not fit in memory
        similarity = np.clip(embeddings.gallery @ embeddings.probe[row], -1, 1)
        is_same = gallery_patients == probe_patients[row]
        counts += [np.histogram(similarity[own], edges)[0] for own in (is_same, ~is_same)]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    middles = (edges[1:] + edges[:-1]) / 2
    means = (shares * middles).sum(1)
    first = int(np.flatnonzero(counts.any(0))[0])

    def plot(axes: Axes) -> None:
        for number, name in ((1, "different patients"), (0, "same patient")):
            axes.stairs(shares[number], edges, fill=True, color=COLORS[1 - number], alpha=0.35)
            axes.stairs(shares[number], edges, color=COLORS[1 - number], linewidth=1.4, label=name)
        axes.set(xlabel="cosine similarity", ylabel="fraction of pairs", xlim=(edges[first], 1.0))
        axes.set_title("Similarities", loc="left")
        axes.legend(loc="upper left")

    text = f"mean {means[0]:.2f} for the same patient, {means[1]:.2f} for different patients"
    return Panel(draw(plot), f"Histograms of similarities: {text}")


def _ranks(matching: Matching) -> Panel:
    ranks = np.arange(1, min(_MAX_RANK, int(matching.num_others.min()) + 1) + 1)
    shares = [matching.rank_accuracy(int(rank)) for rank in ranks]
    chance = ranks / (matching.num_others.mean() + 1)

    def plot(axes: Axes) -> None:
        axes.plot(ranks, shares, "o-", color=COLORS[0], markersize=4, label="model")
        axes.plot(ranks, chance, "--", color=INK, linewidth=1, label="chance")
        axes.set(xlabel="rank K", ylabel="fraction of probes", ylim=(0, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title("CMC curve", loc="left")
        axes.legend(loc="best")

    return Panel(draw(plot), f"CMC curve: rank-1 {shares[0]:.3f}, rank-{ranks[-1]} {shares[-1]:.3f}")


def _verification(matching: Matching) -> Panel:
    false, true = matching.roc()
    rows = np.unique(np.linspace(0, len(false) - 1, min(len(false), 400)).astype(np.int64))
    lowest = 1 / max(matching.num_impostors, 1)

    def plot(axes: Axes) -> None:
        diagonal = np.geomspace(lowest, 1, 50)
        axes.plot(diagonal, diagonal, "--", color=INK, linewidth=0.8)
        axes.plot(np.maximum(false[rows], lowest), true[rows], color=COLORS[0], linewidth=1.6)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="false acceptance rate", ylabel="true acceptance rate", ylim=(0, 1.02))
        axes.set_title("Verification ROC", loc="left")

    return Panel(draw(plot), f"Verification ROC curve; area {matching.auroc():.3f}")


def _examples(embeddings: _Embeddings, matching: Matching, gallery: Gallery) -> list[Block]:
    """Returns the probe with the most confident wrong match, and the gallery entry it was matched with."""
    if gallery.problem:
        return [Text(gallery.problem)]
    gallery_patients, probe_patients = embeddings.patients
    wrong = np.flatnonzero(matching.ranks > 1)
    if not len(wrong):
        return [Text("No probe was mistaken for another patient.")]
    wrong = wrong[:_MAX_PROBES]
    margins, nearest = [], []
    for probe in wrong.tolist():
        similarity = embeddings.gallery @ embeddings.probe[probe]
        is_same = gallery_patients == probe_patients[probe]
        others = np.where(is_same, -np.inf, similarity)
        nearest.append(int(others.argmax()))
        margins.append((float(others.max()), float(similarity[is_same].max())))
    worst = int(np.argmax([other - own for other, own in margins]))
    probe, entry, (other, own) = int(wrong[worst]), nearest[worst], margins[worst]
    arrays = embeddings.arrays
    text = f"similarity {other:.3f}; to the probe's own patient only {own:.3f}"
    panels = [
        gallery.draw(str(arrays["probe_key"][probe]), f"probe, segment {int(arrays['probe_segment'][probe]) + 1}"),
        gallery.draw(
            str(arrays["gallery_key"][entry]), f"gallery, segment {int(arrays['gallery_segment'][entry]) + 1}; {text}"
        ),
    ]
    return [
        Figures(
            "Most confident wrong match: a probe, and the segment of another patient that it was matched with.",
            panels,
            is_wide=True,
        )
    ]
