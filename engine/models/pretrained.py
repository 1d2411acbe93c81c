"""A trained model: it embeds and predicts signals, and is saved, loaded and shared as a folder.

    import engine.models
    model = engine.models.load("DIR")
    embedding = model.embed(signals, leads=["II", "V5"], sampling_rate=250)    # [B, N, T] in mV -> [B, D]
    probabilities = model.predict(signals)    # of a classifier: [B, L], labels as in model.definition.classes

Legend: B segments or recordings, C leads of the model, N leads of signals, T samples, D width, L labels.
"""

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data_tools.labels import LabelDefinition
from engine.models.encoder import Encoder
from engine.models.heads import ClassificationHead, to_predictions
from engine.models.hub import download, is_repository, upload
from engine.models.model_config import ModelConfig
from engine.models.model_folder import find_folder, read_folder, save
from engine.models.model_weights import modules_on_meta
from engine.models.normalization import zscore_per_lead
from engine.models.signal_input import SignalInput, Signals

_BATCH_SIZE = 32


class PretrainedModel(nn.Module):
    """A model from a folder, ready to use: in evaluation mode, fp32, on the CPU until moved.

    Attributes:
        config: the contents of ``config.json``.
        encoder: the encoder.
        head: the head of a classifier, else None.
        objective_weights: tensors of a pre-training model's heads by name, without the prefix ``objective.``; only further
            training and conversion need them.
    """

    def __init__(
        self,
        config: ModelConfig,
        encoder: Encoder,
        head: ClassificationHead | None = None,
        objective_weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.head = head
        self.objective_weights = dict(objective_weights or {})
        self.eval()

    def __repr__(self) -> str:
        """Describes the model in one line; ``print(model.encoder)`` prints the modules."""
        config, options = self.config, self.config.encoder
        num_leads, num_labels = len(config.leads), len(config.labels or ())
        parts = [
            config.kind,
            f"{sum(parameter.numel() for parameter in self.parameters()) / 1e6:.1f}M parameters",
            f"{options.depth} blocks of width {options.width}",
            f"{num_leads} {'lead' if num_leads == 1 else 'leads'} ({', '.join(config.leads)}) at {config.sampling_rate} Hz",
        ]
        if num_labels:
            parts.append(f"{num_labels} {'label' if num_labels == 1 else 'labels'} ({config.definition.kind})")
        return f"PretrainedModel({'; '.join(parts)})"

    @property
    def definition(self) -> LabelDefinition:
        """Names, kind, codes and thresholds of a classifier's labels, in the order of its outputs.

        Raises:
            ValueError: the model is not a classifier.
        """
        if self.head is None:
            raise ValueError(f"a model of kind '{self.config.kind}' has no labels; use embed, or fine-tune it")
        return self.config.definition

    def context(self, segments: Tensor, *, is_normalized: bool = False) -> Tensor:
        """Returns the encoder's output for segments [B, C, T] in mV: [B, T', D], on the model's device.

        Args:
            segments: leads in the order of ``config.leads``, at ``config.sampling_rate``.
            is_normalized: whether the segments are already normalized as configured, for example over a whole recording;
                otherwise each segment is normalized.

        Raises:
            TypeError: not a tensor.
            ValueError: not floating-point, wrong number of axes or leads, or shorter than one token.
        """
        if not isinstance(segments, Tensor):
            raise TypeError(f"expected a tensor, got {type(segments).__name__}; convert arrays with torch.from_numpy")
        if not segments.is_floating_point():
            raise ValueError(
                f"expected floating-point numbers in mV, got {segments.dtype}; for int16 in uV, as in a dataset, pass "
                f"segments / 1000"
            )
        if segments.dim() != 3 or segments.shape[1] != len(self.config.leads):
            raise ValueError(
                f"expected segments [batch, leads, samples] with the leads {', '.join(self.config.leads)}; "
                f"got {list(segments.shape)}"
            )
        segments = segments.to(self.encoder.feature_norm.weight)
        if self.config.normalization == "zscore_per_lead" and not is_normalized:
            segments = zscore_per_lead(segments)
        context: Tensor = self.encoder(segments).context
        return context

    def forward(self, segments: Tensor) -> Tensor:
        """Returns logits [B, L] of a classifier, otherwise embeddings [B, D], with gradient.

        Segments [B, C, T] as in :meth:`context`, of any length: they are not cut or padded as in :meth:`embed`.
        """
        context = self.context(segments)
        output: Tensor = context.mean(1) if self.head is None else self.head(context)
        return output

    @torch.no_grad()
    def embed(
        self,
        signals: Signals,
        *,
        leads: int | Sequence[str] | None = None,
        sampling_rate: float | None = None,
        unit: str | None = None,
        is_normalized: bool = False,
    ) -> Signals:
        """Returns an embedding of each recording, without gradient: the mean of :meth:`context` over time.

        As in ``engine/embed.py``, a recording is cut into consecutive segments of 5 s (``config.segment_samples``), and
        normalization, if the model has one, is over each crop of 10 s. The embeddings of the segments are averaged. A
        remainder shorter than 5 s is dropped; a recording shorter than 5 s is padded with zeros at its end.

        Args:
            signals: a NumPy array or a tensor, [N, T] or [B, N, T], of any integer or floating-point dtype.
            leads: names of the signals' leads, in any order and case, or a number of leads, such as 2 for I and II (see
                :data:`data_tools.leads.LEAD_COMBINATIONS`). Leads that the model lacks, or that its fine-tuning did not use,
                are ignored; missing ones become zero, as in training. None: ``config.leads``, in this order.
            sampling_rate: sampling rate in Hz, 50 to 20,000; signals are resampled. None: ``config.sampling_rate``.
            unit: "V", as in MNE, "mV" or "uV"; None: mV for floating-point numbers, uV for integers, as in a dataset.
            is_normalized: whether the signals are already normalized as configured.

        Returns:
            [D] or [B, D], float32: an array for an array, a tensor on the model's device for a tensor.

        Raises:
            TypeError: neither a NumPy array nor a tensor.
            UserError: the signals cannot be used: NaN, unknown or repeated leads, or a wrong shape, dtype or sampling rate.

        Warns:
            UserWarning: the signals are too small or too large for ECGs, as in another unit, or a recording is constant.
        """
        source = SignalInput(self.config, leads, sampling_rate, unit)
        embeddings: Signals = self._average(lambda context: context.mean(1), signals, source, is_normalized)
        return embeddings

    @torch.no_grad()
    def logits(self, segments: Tensor, *, is_normalized: bool = False) -> Tensor:
        """Returns logits of ``config.labels``, [B, C, T] -> [B, L], without gradient; arguments as in :meth:`context`.

        Raises:
            ValueError: the model is not a classifier.
        """
        logits: Tensor = self._require_head()(self.context(segments, is_normalized=is_normalized))
        return logits

    @torch.no_grad()
    def predict(
        self,
        signals: Signals,
        *,
        leads: int | Sequence[str] | None = None,
        sampling_rate: float | None = None,
        unit: str | None = None,
        is_normalized: bool = False,
    ) -> Signals:
        """Returns predictions of ``config.labels``, [L] or [B, L], without gradient: the mean over a recording's segments.

        Probabilities, which are independent for multilabel and binary labels, and sum to 1 for multiclass labels; or the values
        of a regression, in their own unit. Arguments, treatment of recordings and errors as for :meth:`embed`.

        Raises:
            ValueError: the model is not a classifier.
        """
        head = self._require_head()
        kind = self.definition.kind
        source = SignalInput(self.config, leads, sampling_rate, unit)
        predictions: Signals = self._average(
            lambda context: to_predictions(head(context), kind), signals, source, is_normalized
        )
        return predictions

    def _require_head(self) -> ClassificationHead:
        if self.head is None:
            raise ValueError("the model was not fine-tuned for labels, so it predicts none; use embed")
        return self.head

    def _average(
        self,
        compute: Callable[[Tensor], Tensor],
        signals: Tensor | NDArray[Any],
        source: SignalInput,
        is_normalized: bool,
    ) -> Any:
        """Computes values from the context [B, T', D] of segments, and averages them over each recording's segments.

        A tensor of segments is passed on as it is.
        """
        has_zscore = self.config.normalization == "zscore_per_lead" and not is_normalized
        is_scaled = not (is_normalized or has_zscore)  # z-scores do not depend on the unit
        if isinstance(signals, Tensor) and source.is_segments(signals):
            source.check_finite(signals)
            _warn(source.find_implausible(signals, signals, is_scaled=is_scaled))
            return compute(self.context(signals, is_normalized=is_normalized))
        recordings = source.read(signals)
        _warn(source.find_implausible(recordings, signals, is_scaled=is_scaled))
        means = []
        for batch in recordings.split(_BATCH_SIZE):
            segments = source.cut(batch, zscore_per_lead if has_zscore else None)
            values = [compute(self.context(part, is_normalized=True)) for part in segments.flatten(0, 1).split(_BATCH_SIZE)]
            means.append(torch.cat(values).unflatten(0, segments.shape[:2]).mean(1))
        result = torch.cat(means)
        result = result if signals.ndim == 3 else result[0]
        return result if isinstance(signals, Tensor) else result.float().cpu().numpy()

    def tensors(self) -> dict[str, Tensor]:
        """Returns all tensors by name, with the prefixes ``encoder.``, ``head.`` and ``objective.``."""
        return self.state_dict() | {f"objective.{name}": tensor for name, tensor in self.objective_weights.items()}

    def save(self, folder: Path | str) -> None:
        """Writes the model's folder; errors as for :func:`engine.models.save`."""
        save(folder, self.config, self.tensors())

    def push_to_hub(self, repository: str, *, private: bool = True) -> str:
        """Uploads the model's folder to the Hugging Face Hub; returns the address of the repository.

        The README and config.json contain the provenance, including the path of the initial model.

        Args:
            repository: OWNER/NAME; is created if it does not exist.
            private: whether a new repository can be read only by its owner.

        Raises:
            UserError: huggingface_hub is not installed, or the Hub refuses the upload.
        """
        with tempfile.TemporaryDirectory() as scratch:
            self.save(Path(scratch) / "model")
            return upload(Path(scratch) / "model", repository, private=private)


def load(source: Path | str, *, revision: str | None = None) -> PretrainedModel:
    """Reads a model that :func:`engine.models.save` wrote.

    Args:
        source: the model's folder, or that of the fine-tuning run that made it; or, as text, the OWNER/NAME of a model on the
            Hugging Face Hub, unless there is such a path.
        revision: branch, tag or commit of a model on the Hub; None: the main branch.

    Raises:
        UserError: the folder does not contain a model, a file is damaged, the tensors do not match the configuration, or the
            model cannot be downloaded.
    """
    folder = download(str(source), revision) if is_repository(source) else find_folder(Path(source))
    config, tensors = read_folder(folder)
    encoder, head = modules_on_meta(str(folder), config)
    for prefix, module in (("encoder.", encoder), ("head.", head)):
        if module is not None:
            module.load_state_dict(_without_prefix(tensors, prefix), assign=True)
    return PretrainedModel(config, encoder, head, _without_prefix(tensors, "objective."))


def with_random_weights(config: ModelConfig, seed: int) -> PretrainedModel:
    """Returns an encoder of the same architecture, leads and normalization, whose weights are random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(config.encoder, len(config.leads))
    changes = {"kind": "encoder", "objective": None, "labels": None, "label_definition": None}
    provenance = {"random_seed": seed}
    return PretrainedModel(config.model_copy(update=changes | {"provenance": provenance}), encoder)


def _warn(messages: Sequence[str]) -> None:
    for message in messages:
        warnings.warn(message, stacklevel=5)  # the caller of embed or predict: no_grad and _average are between


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor.float() for name, tensor in tensors.items() if name.startswith(prefix)}
