"""A trained model as a folder, which this engine writes, reads and shares.

    DIR/model.safetensors   tensors by module name: encoder.*, objective.* (pre-training heads), head.* (classifier)
    DIR/config.json         a ModelConfig: architecture, leads in order, sampling rate, unit, normalization, labels, provenance
    DIR/README.md           a short model card

    import engine.models
    model = engine.models.load("DIR")
    embedding = model.embed(signals, leads=["II", "V5"], sampling_rate=250)    # [B, N, T] in mV -> [B, D]
    probabilities = model.predict(signals)    # of a classifier: [B, L], labels as in model.definition.classes

Legend: B segments or recordings, C leads of the model, N leads of signals, T samples, D width, L labels.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from data_tools.files import sync, write_text
from data_tools.labels import LabelDefinition
from engine.models.encoder import Encoder
from engine.models.heads import ClassificationHead, to_predictions
from engine.models.hub import WEIGHTS_FILE, download, is_repository, upload
from engine.models.model_card import CARD_FILE, model_card
from engine.models.model_config import CONFIG_FILE, ModelConfig, read_config
from engine.models.model_weights import check_tensors, modules_on_meta
from engine.models.signal_input import SignalInput, Signals, Unit
from engine.options import UserError

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
                f"expected segments [batch, {len(self.config.leads)} leads, samples] with leads "
                f"{', '.join(self.config.leads)}; got {list(segments.shape)}"
            )
        segments = segments.to(self.encoder.feature_norm.weight)
        if self.config.normalization == "zscore_per_lead" and not is_normalized:
            segments = zscore_per_lead(segments)
        context: Tensor = self.encoder(segments).context
        return context

    def forward(self, segments: Tensor) -> Tensor:
        """Returns logits [B, L] of a classifier, otherwise embeddings [B, D], with gradient.

        Segments [B, C, T] as in :meth:`context`, of any length: they are not cut or padded, as :meth:`embed` does.
        """
        context = self.context(segments)
        output: Tensor = context.mean(1) if self.head is None else self.head(context)
        return output

    @torch.no_grad()
    def embed(
        self,
        signals: Signals,
        *,
        leads: Sequence[str] | None = None,
        sampling_rate: float | None = None,
        unit: Unit | None = None,
        is_normalized: bool = False,
    ) -> Signals:
        """Returns an embedding of each recording, without gradient: the mean of :meth:`context` over time.

        As in ``engine/embed.py``, a recording is cut into consecutive segments of 5 s (``config.segment_samples``), and
        normalization, if the model has one, is over each crop of 10 s. The embeddings of the segments are averaged. A rest
        shorter than 5 s is dropped; a recording shorter than 5 s is padded with zeros at its end.

        Args:
            signals: a NumPy array or a tensor, [N, T] or [B, N, T], of any integer or floating-point dtype.
            leads: names of the signals' leads, in any order and case. Leads that the model lacks, or that its fine-tuning did
                not use, are ignored; missing ones become zero, as in training. None: ``config.leads``, in this order.
            sampling_rate: sampling rate in Hz, 50 to 20,000; signals are resampled. None: ``config.sampling_rate``.
            unit: "mV" or "uV"; None: mV for floating-point numbers, uV for integers, as in a dataset.
            is_normalized: whether the signals are already normalized as configured.

        Returns:
            [D] or [B, D], float32: an array for an array, a tensor on the model's device for a tensor.

        Raises:
            TypeError: neither a NumPy array nor a tensor.
            UserError: the signals cannot be used: NaN, unknown or repeated leads, or a wrong shape, dtype or sampling rate.
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
        leads: Sequence[str] | None = None,
        sampling_rate: float | None = None,
        unit: Unit | None = None,
        is_normalized: bool = False,
    ) -> Signals:
        """Returns predictions of ``config.labels``, [L] or [B, L], without gradient: the mean over a recording's segments.

        Probabilities: independent ones of multilabel and binary labels, of multiclass labels with sum 1; or the numbers of a
        regression, in their own unit. Arguments, treatment of recordings and errors as for :meth:`embed`.

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
            raise ValueError(f"a model of kind '{self.config.kind}' has no logits; use embed")
        return self.head

    def _average(
        self,
        compute: Callable[[Tensor], Tensor],
        signals: Tensor | NDArray[Any],
        source: SignalInput,
        is_normalized: bool,
    ) -> Any:
        """Returns the mean over the segments of each recording of what is computed of their context [B, T', D].

        A tensor of segments is passed on as it is.
        """
        if isinstance(signals, Tensor) and source.is_segments(signals):
            source.check_finite(signals)
            return compute(self.context(signals, is_normalized=is_normalized))
        recordings = source.read(signals)
        has_zscore = self.config.normalization == "zscore_per_lead" and not is_normalized
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
        """Writes the model's folder; errors as for :func:`save`."""
        save(folder, self.config, self.tensors())

    def push_to_hub(self, repository: str, *, private: bool = True) -> str:
        """Uploads the model's folder to the Hugging Face Hub; returns the address of the repository.

        The README and config.json contain the provenance, including the path that fine-tuning started from.

        Args:
            repository: OWNER/NAME; is created if it does not exist.
            private: whether a new repository can be read only by its owner.

        Raises:
            UserError: huggingface_hub is not installed, or the Hub refuses the upload.
        """
        with tempfile.TemporaryDirectory() as scratch:
            self.save(Path(scratch) / "model")
            return upload(Path(scratch) / "model", repository, private=private)


def zscore_per_lead(signal: Tensor) -> Tensor:
    """Subtracts each lead's mean and divides by its (population) standard deviation: [..., C, T]; a flat lead becomes zero."""
    centered = signal - signal.mean(-1, keepdim=True)
    deviation = centered.square().mean(-1, keepdim=True).sqrt()
    # Rounding may leave a flat lead some deviation, and differences below 1e-22 have a square of zero.
    is_flat = (signal.amax(-1, keepdim=True) == signal.amin(-1, keepdim=True)) | (deviation == 0)
    return torch.where(is_flat, 0.0, centered / deviation.where(~is_flat, 1.0))


def standardize(segments: Tensor, statistics: Tensor) -> Tensor:
    """Subtracts from each lead of segments the mean of its crop and divides by its standard deviation.

    A lead that is flat throughout the crop, or zero throughout the segment (missing, or masked), becomes zero.

    Args:
        segments: [..., C, T].
        statistics: [..., C, 2], mean and standard deviation in the same unit.
    """
    mean, deviation = statistics[..., :1], statistics[..., 1:]
    is_usable = (deviation > 0) & segments.any(-1, keepdim=True)
    return torch.where(is_usable, (segments - mean) / deviation.where(deviation > 0, 1.0), 0.0)


def load(source: Path | str, *, revision: str | None = None) -> PretrainedModel:
    """Reads a model that :func:`save` wrote.

    Args:
        source: the model's folder; or, as text, the OWNER/NAME of a model on the Hugging Face Hub, unless there is such a path.
        revision: branch, tag or commit of a model on the Hub; None: the main branch.

    Raises:
        UserError: the folder does not contain a model, a file is damaged, the tensors do not match the configuration, or the
            model cannot be downloaded.
    """
    folder = download(str(source), revision) if is_repository(source) else Path(source)
    config = read_config(folder)
    file = folder / WEIGHTS_FILE
    try:
        tensors = load_file(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{file}: not a valid safetensors file ({error}); get another copy of the model") from None
    check_tensors(str(file), config, tensors)
    encoder, head = modules_on_meta(str(file), config)
    for prefix, module in (("encoder.", encoder), ("head.", head)):
        if module is not None:
            module.load_state_dict(_without_prefix(tensors, prefix), assign=True)
    return PretrainedModel(config, encoder, head, _without_prefix(tensors, "objective."))


def with_random_weights(config: ModelConfig, seed: int) -> PretrainedModel:
    """Returns an encoder of the same architecture, leads and normalization, whose weights are random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(config.encoder, len(config.leads))
    what = {"kind": "encoder", "objective": None, "labels": None, "label_definition": None, "provenance": {"random_seed": seed}}
    return PretrainedModel(config.model_copy(update=what), encoder)


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor.float() for name, tensor in tensors.items() if name.startswith(prefix)}


def save(folder: Path | str, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Writes a model's folder atomically.

    Args:
        folder: a new or empty folder.
        config: the contents of ``config.json``.
        tensors: tensors by name, with the prefixes ``encoder.``, ``objective.`` and ``head.``; written in fp32.

    Raises:
        UserError: the folder is not empty or cannot be written, or the tensors do not match the configuration.
    """
    folder = Path(folder)
    check_tensors(str(folder), config, tensors)
    check_new_folder(folder)
    target = folder.absolute()  # so that the working folder has a name, too
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.mkdir(parents=True)
            weights = {name: tensor.detach().float().cpu().contiguous().clone() for name, tensor in tensors.items()}
            save_file(weights, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
            sync(temporary / WEIGHTS_FILE)
            write_text(temporary / CONFIG_FILE, json.dumps(config.model_dump(mode="json"), indent=1) + "\n")
            shutil.copymode(temporary / CONFIG_FILE, temporary / WEIGHTS_FILE)  # safetensors lets only the owner read it
            write_text(temporary / CARD_FILE, model_card(config))
            sync(temporary)
            temporary.rename(target)
            sync(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


def check_new_folder(folder: Path) -> None:
    """Checks that a folder does not exist or is empty.

    Raises:
        UserError: it is not.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder}: already exists: name a new folder")
