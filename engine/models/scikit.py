"""Embeddings as features for scikit-learn.

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from engine.models.scikit import ECGEmbedder
classifier = make_pipeline(ECGEmbedder("models/first", sampling_rate=500), LogisticRegression())
classifier.fit(signals, labels)    # [B, C, T] in mV
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from engine.device import select_device
from engine.models.pretrained import PretrainedModel, load
from engine.models.signal_input import SignalInput
from engine.options import UserError


class ECGEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """A transformer from ECGs to their embeddings, see :meth:`engine.models.PretrainedModel.embed`.

    Nothing is learned: ``fit`` loads the model and checks the signals.

    Args:
        model: a model's folder, the OWNER/NAME of a model on the Hugging Face Hub, or a model. ``clone``, and
            therefore cross-validation, copies a model that is given as an object.
        leads: names of the signals' leads, or a number of leads, such as 2 for I and II; None: the model's.
        sampling_rate: sampling rate of the signals in Hz; None: the model's.
        unit: "V", "mV" or "uV"; None: mV for floating-point numbers, uV for integers.
        device: "auto", "cpu" or "cuda", for a model that is loaded; a model given as an object stays on its device.

    Attributes:
        model_: the model.
        n_features_in_: number of leads; for flat signals, number of values in a row.
    """

    def __init__(
        self,
        model: PretrainedModel | str | Path | None = None,
        *,
        leads: int | Sequence[str] | None = None,
        sampling_rate: float | None = None,
        unit: str | None = None,
        device: str = "auto",
    ) -> None:
        self.model = model
        self.leads = leads
        self.sampling_rate = sampling_rate
        self.unit = unit
        self.device = device

    def fit(self, X: ArrayLike, y: object = None) -> Self:  # noqa: ARG002 -- as scikit-learn calls it
        """Loads the model and checks the signals.

        Args:
            X: [B, N, T]; or flat, [B, N * T], the samples of one lead after the other.
            y: ignored.

        Raises:
            UserError: there is no model, or the signals cannot be used.
        """
        if self.model is None:
            raise UserError("ECGEmbedder needs a model: a folder, a name on the Hugging Face Hub, or engine.models.create()")
        if isinstance(self.model, PretrainedModel):
            self.model_ = self.model
        else:
            self.model_ = load(self.model).to(select_device(self.device))
        source = self._source()
        source.read(self._signals(X, source.num_leads, reset=True))
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Returns the embeddings of signals like those of :meth:`fit`, of any number and length: float32 [B, D].

        Raises:
            UserError: the signals cannot be used.
        """
        check_is_fitted(self)
        signals = self._signals(X, self._source().num_leads, reset=False)
        return self.model_.embed(signals, leads=self.leads, sampling_rate=self.sampling_rate, unit=self.unit)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # embeddings are float32
        return tags

    def _source(self) -> SignalInput:
        return SignalInput(self.model_.config, self.leads, self.sampling_rate, self.unit)

    def _signals(self, X: ArrayLike, num_leads: int, *, reset: bool) -> NDArray[Any]:
        """Returns signals as [B, N, T]; NaN is left for the model, which names row and lead."""
        signals: NDArray[Any] = validate_data(
            self, X, reset=reset, dtype="numeric", allow_nd=True, ensure_all_finite=False, estimator=self
        )
        if signals.ndim != 2:
            return signals
        if signals.shape[1] % num_leads:
            raise UserError(
                f"expected [rows, leads, samples], got rows of {signals.shape[1]} values, not a multiple of {num_leads} leads"
            )
        return signals.reshape(len(signals), num_leads, -1)

    @property
    def _n_features_out(self) -> int:
        """Number of columns of the output, from which scikit-learn makes their names."""
        return int(self.model_.config.encoder.width)
