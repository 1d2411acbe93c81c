"""A trained model as a folder: what this engine writes, reads and shares.

    DIR/model.safetensors   tensors by our modules' names: encoder.*, objective.* (pre-training heads), head.* (classifier)
    DIR/config.json         a ModelConfig: architecture, leads in order, sampling rate, unit, normalization, labels, provenance
    DIR/README.md           a short model card

    import engine.models
    model = engine.models.load("DIR")
    embedding = model.embed(segments)    # [B, C, 2500] in mV -> [B, D]

Legend: B segments, C leads, T samples, D width, L labels.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import safetensors
import torch
from pydantic import Field, JsonValue, ValidationError, field_serializer, model_validator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from data_tools.files import sync_folder, write_text
from data_tools.leads import LEADS, canonical_lead
from data_tools.recording import SAMPLING_RATE, SEGMENT_SAMPLES
from engine.models.encoder import Encoder, EncoderOptions
from engine.models.heads import ClassificationHead
from engine.options import Options, UserError

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
CARD_FILE = "README.md"

ModelKind = Literal["encoder", "pretraining", "classifier"]
Normalization = Literal["none", "zscore_per_lead"]


class ModelConfig(Options):
    """The contents of ``config.json``: everything needed to rebuild the model and to prepare its input.

    Attributes:
        format: says what the file is.
        format_version: of this layout.
        kind: ``encoder`` alone, with the heads of its ``pretraining``, or a ``classifier``.
        encoder: sizes and dropouts.
        objective: of a pre-training model: its name and options, as in a run's configuration.
        leads: names, in the order of the input's channels.
        sampling_rate: Hz, of the input.
        segment_samples: length of the segments it was trained on; others work too.
        input_unit: of the input, before normalization.
        normalization: ``none``, or ``zscore_per_lead``: each lead minus its mean over its standard deviation.
        labels: of a classifier: names, in the order of the logits.
        provenance: where the weights came from; free.
    """

    format: Literal["ecg-engine-model"] = "ecg-engine-model"
    format_version: Literal[1] = 1
    kind: ModelKind
    encoder: EncoderOptions
    objective: dict[str, JsonValue] | None = None
    leads: Annotated[tuple[str, ...], Field(min_length=1)] = LEADS
    sampling_rate: Annotated[int, Field(gt=0)] = SAMPLING_RATE
    segment_samples: Annotated[int, Field(gt=0)] = SEGMENT_SAMPLES
    input_unit: Literal["mV"] = "mV"
    normalization: Normalization = "none"
    labels: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    provenance: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _check_num_leads(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Takes the number of leads, which the file repeats, out of the encoder's options."""
        encoder = content.get("encoder")
        if not isinstance(encoder, Mapping) or "num_leads" not in encoder:
            return content
        leads = content.get("leads", LEADS)
        if isinstance(leads, Sequence) and len(leads) != encoder["num_leads"]:
            raise ValueError(f"encoder.num_leads is {encoder['num_leads']}, but {len(leads)} leads are named")
        return {**content, "encoder": {key: value for key, value in encoder.items() if key != "num_leads"}}

    @field_serializer("encoder")
    def _write_encoder(self, encoder: EncoderOptions) -> dict[str, JsonValue]:
        return {"num_leads": len(self.leads), **encoder.model_dump(mode="json")}

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = [name for name in self.leads if canonical_lead(name) != name]
        if wrong or len(set(self.leads)) < len(self.leads):
            raise ValueError(f"leads must be some of {', '.join(LEADS)}, each once, got {', '.join(self.leads)}")
        if (self.objective is not None) != (self.kind == "pretraining"):
            raise ValueError("objective belongs to the kind 'pretraining', and to no other")
        if self.objective is not None and not isinstance(self.objective.get("name"), str):
            raise ValueError("objective has no name")
        if (self.labels is not None) != (self.kind == "classifier") or len(set(self.labels or ())) < len(self.labels or ()):
            raise ValueError("labels, each once, belong to the kind 'classifier', and to no other")
        return self


class PretrainedModel(nn.Module):
    """A model from a folder, ready to use: in evaluation mode, fp32, on the CPU until moved.

    Attributes:
        config: what the folder's ``config.json`` says.
        encoder: the encoder.
        head: of a classifier, else None.
        objective_weights: of a pre-training model: the tensors of its heads by name, without the prefix ``objective.``; only
            further training and conversion need them.
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

    def context(self, segments: Tensor, *, is_normalized: bool = False) -> Tensor:
        """The encoder's output for segments [B, C, T] in mV: [B, T', D], on the model's device.

        Args:
            segments: leads in the order of ``config.leads``, at ``config.sampling_rate``.
            is_normalized: whether the segments have had the configured normalization already, as when it was over a whole
                recording; else it is over each segment.

        Raises:
            TypeError: no tensor.
            ValueError: no floating-point numbers, wrong number of axes or leads, or fewer samples than one token.
        """
        if not isinstance(segments, Tensor):
            raise TypeError(f"the model takes a tensor, got {type(segments).__name__}: of a NumPy array, torch.from_numpy")
        if not segments.is_floating_point():
            raise ValueError(
                f"the model takes floating-point numbers in mV, got {segments.dtype}: of int16 in uV, as in a dataset, give "
                f"segments / 1000"
            )
        if segments.dim() != 3 or segments.shape[1] != len(self.config.leads):
            raise ValueError(
                f"the model takes segments [batch, {len(self.config.leads)} leads, samples] of "
                f"{', '.join(self.config.leads)}; got {list(segments.shape)}"
            )
        segments = segments.to(self.encoder.feature_norm.weight)
        if self.config.normalization == "zscore_per_lead" and not is_normalized:
            segments = zscore_per_lead(segments)
        context: Tensor = self.encoder(segments).context
        return context

    @torch.no_grad()
    def embed(self, segments: Tensor, *, is_normalized: bool = False) -> Tensor:
        """One vector for each segment, [B, C, T] -> [B, D]: the mean over time of :meth:`context`, without gradient."""
        return self.context(segments, is_normalized=is_normalized).mean(1)

    @torch.no_grad()
    def logits(self, segments: Tensor, *, is_normalized: bool = False) -> Tensor:
        """Logits of ``config.labels``, [B, C, T] -> [B, L], without gradient; arguments as in :meth:`context`.

        Raises:
            ValueError: if the model is no classifier.
        """
        if self.head is None:
            raise ValueError(f"the model's kind is '{self.config.kind}', which gives no logits: use embed")
        logits: Tensor = self.head(self.context(segments, is_normalized=is_normalized))
        return logits


def zscore_per_lead(signal: Tensor) -> Tensor:
    """Each lead minus its mean over its (population) standard deviation: [..., C, T]; a flat lead becomes zero."""
    centered = signal - signal.mean(-1, keepdim=True)
    deviation = centered.square().mean(-1, keepdim=True).sqrt()
    # Rounding may leave a flat lead some deviation, and differences below 1e-22 have a square of zero.
    is_flat = (signal.amax(-1, keepdim=True) == signal.amin(-1, keepdim=True)) | (deviation == 0)
    return torch.where(is_flat, 0.0, centered / deviation.where(~is_flat, 1.0))


def load(folder: Path | str) -> PretrainedModel:
    """Reads a model that :func:`save` wrote.

    Raises:
        UserError: one line: the folder is none of a model, a file is damaged, or its tensors are not those that its
            configuration calls for (each is used, or the model is refused).
    """
    folder = Path(folder)
    config = read_config(folder)
    file = folder / WEIGHTS_FILE
    try:
        tensors = load_file(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error}): the folder of a model holds one") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{file}: is no whole safetensors file ({error}): take another copy of the model") from None
    check_tensors(str(file), config, tensors)
    encoder, head = empty_modules(str(file), config)
    for prefix, module in (("encoder.", encoder), ("head.", head)):
        if module is not None:
            module.load_state_dict(_without_prefix(tensors, prefix), assign=True)
    return PretrainedModel(config, encoder, head, _without_prefix(tensors, "objective."))


def read_config(folder: Path) -> ModelConfig:
    """Reads the ``config.json`` of a model's folder; UserError says in one line what is wrong with it."""
    file = folder / CONFIG_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read ({error.strerror}): give the folder of a model, with {WEIGHTS_FILE} and {CONFIG_FILE}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: is not JSON: {error}") from None
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(content, dict) or content.get("format") != "ecg-engine-model":
        raise UserError(f"{file}: is not of a model of this engine: engine/convert.py makes one from other formats")
    if version != 1:
        raise UserError(f"{file}: has format version {version}, this engine reads 1: take the engine that wrote it")
    try:
        return ModelConfig.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{file}: {describe_mistake(error)}") from None


def save(folder: Path | str, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Writes a model's folder, which appears whole or not at all.

    Args:
        folder: is made; it may exist if it is empty.
        config: what ``config.json`` is to say.
        tensors: by name, with the prefixes ``encoder.``, ``objective.`` and ``head.``; written in fp32.

    Raises:
        UserError: the folder holds something already or cannot be written, or the tensors are not those of the model.
    """
    folder = Path(folder)
    check_tensors(str(folder), config, tensors)
    check_free(folder)
    place = folder.absolute()  # the working folder too has a name then
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.mkdir(parents=True)
            weights = {name: tensor.detach().float().cpu().contiguous().clone() for name, tensor in tensors.items()}
            save_file(weights, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
            _flush(temporary / WEIGHTS_FILE)
            write_text(temporary / CONFIG_FILE, json.dumps(config.model_dump(mode="json"), indent=1) + "\n")
            shutil.copymode(temporary / CONFIG_FILE, temporary / WEIGHTS_FILE)  # safetensors lets nobody else read it
            write_text(temporary / CARD_FILE, _card(config))
            sync_folder(temporary)
            temporary.rename(place)
            sync_folder(place.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


def check_free(folder: Path) -> None:
    """Raises UserError if there is something at the place of a new folder, other than an empty folder."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder}: is there already: name a new folder for the model")


def check_tensors(where: str, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Compares tensors with those that a model of this configuration has.

    Pre-training heads are compared by whoever knows objectives, see :mod:`engine.interop.native`; here they must only belong
    to a pre-training model.

    Raises:
        UserError: one line: which are missing, surplus, of another shape, no floating-point numbers, or not finite in fp32.
    """
    encoder, head = empty_modules(where, config)
    modules = {"encoder.": encoder} | ({} if head is None else {"head.": head})
    shapes = {p + name: tensor.shape for p, module in modules.items() for name, tensor in module.state_dict().items()}
    is_pretraining = config.kind == "pretraining"
    given = {name: tensor for name, tensor in tensors.items() if not (is_pretraining and name.startswith("objective."))}
    compare_shapes(where, {name: tensor.shape for name, tensor in given.items()}, shapes)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise UserError(f"{where}: the tensor {name} holds {tensor.dtype}, not floating-point numbers")
        if not tensor.float().isfinite().all():
            raise UserError(f"{where}: {name} holds NaN or infinity: the training of this model had failed")


def compare_shapes(where: str, given: Mapping[str, torch.Size], expected: Mapping[str, torch.Size]) -> None:
    """Raises UserError, in one line, unless names and shapes of tensors are those expected."""
    missing, surplus = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    differing = [name for name in sorted(expected.keys() & given.keys()) if expected[name] != given[name]]
    problems = [f"{label} {_first(names)}" for label, names in (("lacks", missing), ("has a surplus", surplus)) if names]
    if differing:
        name = differing[0]
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        problems.append(f"has {name} of shape {list(given[name])} instead of {list(expected[name])}{more}")
    if problems:
        raise UserError(f"{where}: {'; '.join(problems)}: weights and configuration are not of the same model")


def describe_mistake(error: ValidationError) -> str:
    """Pydantic's report in one line: the first mistake, and how many more there are."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
    elif first["type"] == "extra_forbidden":
        text = "no such key"
    else:
        text = f"{first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{path + ': ' if path else ''}{text}{more}"


def _first(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor.float() for name, tensor in tensors.items() if name.startswith(prefix)}


@contextmanager
def without_storage(where: str) -> Iterator[None]:
    """Modules that are made within have no storage: no time is spent on initial weights, and no random numbers.

    Raises:
        UserError: sizes whose product torch cannot count; ``where`` is what says them.
    """
    try:
        with torch.device("meta"):
            yield
    except RuntimeError as error:
        raise UserError(f"{where}: no model can be as large as its configuration says ({error})") from None


def empty_modules(where: str, config: ModelConfig) -> tuple[Encoder, ClassificationHead | None]:
    """The modules of a model :func:`without_storage`."""
    with without_storage(where):
        head = None if config.labels is None else ClassificationHead(config.encoder.width, len(config.labels))
        return Encoder(config.encoder, len(config.leads)), head


def _flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _card(config: ModelConfig) -> str:
    """The model card: what the model is, what it takes and gives, and where it came from."""
    options = config.encoder
    given = {
        "encoder": "an embedding of each segment",
        "pretraining": "an embedding of each segment; the heads of its pre-training are included",
        "classifier": f"logits of {len(config.labels or ())} labels (a sigmoid gives probabilities), and an embedding",
    }[config.kind]
    objective: Any = config.objective
    rows = {
        "kind": config.kind + (f", objective {objective['name']}" if objective else ""),
        "gives": given,
        "encoder": f"{options.depth} transformer blocks, width {options.width}, {options.num_heads} heads; "
        f"{options.feature_blocks} convolution blocks of {options.feature_channels} channels ({options.norm})",
        "leads, in order": ", ".join(config.leads),
        "input": f"{config.sampling_rate} Hz, {config.input_unit}, segments of {config.segment_samples} samples",
        "normalization": {"none": "none", "zscore_per_lead": "z-score of each lead"}[config.normalization],
    }
    if config.labels:
        rows["labels, in order"] = ", ".join(config.labels)
    rows |= {name: str(value) for name, value in config.provenance.items()}
    table = "\n".join(f"| {name} | {' '.join(value.replace('|', '/').split())} |" for name, value in rows.items())
    call = "logits" if config.kind == "classifier" else "embed"
    return (
        f"# ECG model\n\nFor research; not a medical device.\n\n| | |\n|---|---|\n{table}\n\n## Use\n\n"
        f"    import engine.models\n    model = engine.models.load(DIR)\n"
        f"    result = model.{call}(segments)  # [batch, {len(config.leads)}, {config.segment_samples}]\n"
    )
