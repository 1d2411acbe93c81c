"""Identification of patients: probes against a gallery, by the cosine similarity of embeddings."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_tools.validation import count
from engine.evaluation import IdentificationMetrics, Matching, match
from engine.inference.crop_models import Embedder
from engine.inference.run import Runner
from engine.inference.segments import SegmentSet
from engine.options import UserError

FALSE_ACCEPTANCES: Final = (1e-2, 1e-3)
_GALLERY_SIZES: Final = (10, 100, 1000, 10_000, 100_000)


@dataclass(frozen=True)
class Identification:
    """The comparison of probes with a gallery.

    Attributes:
        matching: its result.
        gallery: the segments of the gallery.
        probes: the segments to identify.
        gallery_embeddings: float32 [gallery, D].
        probe_embeddings: float32 [probes, D].
    """

    matching: Matching
    gallery: SegmentSet
    probes: SegmentSet
    gallery_embeddings: NDArray[np.float32]
    probe_embeddings: NDArray[np.float32]

    @property
    def metrics(self) -> IdentificationMetrics:
        """Rank-1 and rank-5 accuracy."""
        return IdentificationMetrics(self.matching)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays for a report of similarities."""
        arrays: dict[str, NDArray[Any]] = {"gallery": self.gallery_embeddings, "probe": self.probe_embeddings}
        for name, segments in (("gallery", self.gallery), ("probe", self.probes)):
            arrays |= {f"{name}_key": segments.keys(), f"{name}_segment": segments.half, f"{name}_patient": segments.patient}
        return arrays

    def facts(self) -> dict[str, Any]:
        """Returns the metrics without intervals: verification, and rank-1 accuracy by the size of the gallery.

        Verification metrics that are undefined, as with a gallery of one patient, are ``None``.
        """
        matching = self.matching
        verification = {f"tar_at_far_{far:g}": matching.true_acceptance(far) for far in FALSE_ACCEPTANCES}
        verification |= {"auroc": matching.auroc(), "equal_error_rate": matching.equal_error_rate()}
        most = int(matching.num_others.min())
        sizes = [size for size in _GALLERY_SIZES if size - 1 < most] + [most + 1]
        return {
            "verification": {name: value if np.isfinite(value) else None for name, value in verification.items()},
            "rank_1_by_gallery_size": {str(size): matching.rank_accuracy(1, size - 1) for size in sizes},
        }


def identify(embedder: Embedder, gallery: SegmentSet, probes: SegmentSet, runner: Runner) -> Identification:
    """Embeds gallery and probes, and compares them.

    Raises:
        UserError: a segment is in both, or a probe's patient is not in the gallery.
    """
    shared = set(_names(gallery)) & set(_names(probes))
    if shared:
        key, half = min(shared)
        raise UserError(
            f"{gallery.description} and {probes.description} share {count(len(shared), 'segment')}, such as segment {half} of "
            f"{key}: a probe must not be in the gallery"
        )
    (gallery, enrolled), (probes, embeddings) = (segments.apply(embedder, runner) for segments in (gallery, probes))
    matching = match(embeddings, enrolled, probes.patient, gallery.patient)
    return Identification(matching, gallery, probes, enrolled, embeddings)


def _names(segments: SegmentSet) -> list[tuple[str, int]]:
    return list(zip(segments.keys().tolist(), segments.half.tolist(), strict=True))
