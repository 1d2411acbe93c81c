"""Checkpoints of the official implementation (fairseq-signals; ECG-FM too) to our native folder, and back."""

import csv
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_tools.files import atomic_write, printable
from data_tools.leads import LEADS, canonical_lead
from engine.interop.fairseq_cfg import OfficialModel, read_cfg, write_cfg
from engine.interop.fairseq_keys import (
    HEADS,
    KeyTable,
    below_encoder,
    has_projection,
    key_table,
    modern_names,
    to_official,
    to_ours,
)
from engine.interop.native import empty_tensors, load_tensors, save_model
from engine.interop.torch_files import plain_tensors, read_torch_file
from engine.models import ModelConfig
from engine.models.pretrained import Normalization, check_free, compare_shapes
from engine.options import UserError

_MASK = "encoder.mask_embedding.embedding"
_PROJECTION = "encoder.feature_projection"


def import_fairseq(
    checkpoint: Path,
    folder: Path,
    *,
    normalization: Normalization | None = None,
    leads: Sequence[str] | None = None,
    labels: Path | None = None,
) -> list[str]:
    """Converts a checkpoint of the official implementation, pre-trained or fine-tuned, to a native folder.

    Args:
        checkpoint: the ``.pt`` file. It is read as data only: no code in it is run.
        folder: the native folder to make.
        normalization: of the input in its training, which a checkpoint does not say; None takes ``none``.
        leads: names in the order of the input's channels; may be None for twelve, whose order the official code fixes.
        labels: of a classifier: a text file with a name on each line, or a CSV file with a column ``name``.

    Returns:
        Lines for the user: what was ignored and why, and what had to be assumed.

    Raises:
        UserError: one line; nothing was written.
    """
    check_free(folder)
    content = read_torch_file(checkpoint)
    weights = _weights(checkpoint, content)
    model = read_cfg(str(checkpoint), content["cfg"])
    notes = [f"ignored: {key} (not part of the model)" for key in content if key not in {"cfg", "model"}]
    config, assumed = _config(checkpoint, model, weights, normalization, leads, labels)
    tensors, ignored = _tensors(str(checkpoint), model, config, weights)
    save_model(folder, config, tensors)
    return notes + ignored + assumed


def _weights(checkpoint: Path, content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping) or content.get("cfg") is None:
        raise UserError(f"{checkpoint}: is no checkpoint of fairseq-signals, which holds 'cfg' and 'model'")
    return plain_tensors(f"{checkpoint}: model", content["model"])


def _config(
    checkpoint: Path,
    model: OfficialModel,
    weights: Mapping[str, Tensor],
    normalization: Normalization | None,
    leads: Sequence[str] | None,
    labels: Path | None,
) -> tuple[ModelConfig, list[str]]:
    """The native configuration, and lines on what the checkpoint does not say."""
    notes = []
    if normalization is None:
        if model.is_standardized:
            raise UserError(
                f"{checkpoint}: cfg.task.normalize is true: each segment was standardized, all leads together, which this "
                f"engine does not do: give --normalization none and standardize the input yourself"
            )
        normalization = "none"
        notes.append(
            "assumed: --normalization none, the paper's recipe, as a checkpoint does not say; ECG-FM was trained with "
            "--normalization zscore_per_lead"
        )
    if model.is_filtered:
        notes.append("note: cfg.task.filter is true: its training filtered the signals, and this engine does not")
    names: Sequence[str] | None = None
    if model.family == "classifier":
        names = _label_names(checkpoint, model, weights, labels)
        if labels is None:
            notes.append("assumed: the labels are called label_0, label_1, ..., as a checkpoint does not say; see --labels")
    elif labels is not None:
        raise UserError(f"{checkpoint}: holds '{model.name}', which is no classifier and has no labels: leave out --labels")
    kind = {"classifier": "classifier", "identifier": "encoder"}.get(
        model.family, "pretraining" if model.objective else "encoder"
    )
    return (
        ModelConfig.model_validate(
            {
                "kind": kind,
                "encoder": model.encoder,
                "objective": model.objective,
                "leads": _lead_names(checkpoint, model, leads),
                "sampling_rate": model.sampling_rate,
                "normalization": normalization,
                "labels": names,
                "provenance": {
                    "source": "fairseq-signals",
                    "model": model.name,
                    "file": printable(checkpoint.name),
                    "sha256": _sha256(checkpoint),
                },
            }
        ),
        notes,
    )


def _lead_names(checkpoint: Path, model: OfficialModel, leads: Sequence[str] | None) -> tuple[str, ...]:
    number = model.num_leads
    if leads is None:
        if number != len(LEADS):
            raise UserError(f"{checkpoint}: the model takes {number} leads: name them in their order, --leads I,II,...")
        return LEADS
    names = [canonical_lead(name) for name in leads]
    unknown = [name for name, known in zip(leads, names, strict=True) if known is None]
    if unknown:
        raise UserError(f"--leads: no lead '{unknown[0]}'; there are {', '.join(LEADS)}")
    if len(set(names)) != number or len(names) != number:
        raise UserError(f"--leads: {len(names)} names, but the model in {checkpoint} takes {number} leads, each once")
    return tuple(name for name in names if name is not None)


def _label_names(checkpoint: Path, model: OfficialModel, weights: Mapping[str, Tensor], labels: Path | None) -> tuple[str, ...]:
    number = model.num_labels or (weights["proj.bias"].numel() if "proj.bias" in weights else 0)
    if number < 1:
        raise UserError(f"{checkpoint}: cfg.model.num_labels is {model.num_labels}, and there is no proj.bias")
    if labels is None:
        return tuple(f"label_{i}" for i in range(number))
    try:
        lines = labels.read_text(encoding="utf-8-sig").splitlines()
        rows = list(csv.DictReader(lines)) if labels.suffix.lower() == ".csv" else None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise UserError(f"{labels}: cannot be read ({reason})") from None
    if rows is not None:
        if any("name" not in row for row in rows):
            raise UserError(f"{labels}: a CSV file of labels has a column 'name'")
        lines = [row["name"] or "" for row in rows]
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != number or len(set(names)) != number:
        raise UserError(f"{labels}: names {len(set(names))} different labels, but {checkpoint} has {number}")
    return names


def _tensors(
    where: str, model: OfficialModel, config: ModelConfig, weights: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Our tensors, every official one used or named with the reason."""
    prefix = "encoder." if model.is_fine_tuned else ""
    weights = modern_names(weights, prefix)
    has_mask = model.family in {"w2v", "w2v_cmsc"} or f"{prefix}mask_emb" in weights
    ignored = _ignored(model, weights, prefix)
    weights = {name: tensor for name, tensor in weights.items() if name not in ignored}
    table = _table(config, has_mask_embedding=has_mask, is_fine_tuned=model.is_fine_tuned)
    expected = empty_tensors(where, config)
    official_shapes = {name: tensor.shape for name, tensor in to_official(expected, table).items()}
    compare_shapes(where, {name: tensor.shape for name, tensor in weights.items()}, official_shapes)
    tensors = to_ours(weights, table, {name: tensor.shape for name, tensor in expected.items()})
    notes = [f"ignored: {name} ({reason})" for name, reason in ignored.items()]
    if not has_mask:
        tensors[_MASK] = torch.zeros(config.encoder.width)
        notes.append("zero: the mask embedding, which the checkpoint does not have and only pre-training uses")
    if not has_projection(config.encoder):
        tensors |= _identity(config.encoder.width)
        notes.append("identity: the projection of the features, which the official model leaves out as their width is the same")
    return tensors, notes


def _ignored(model: OfficialModel, weights: Mapping[str, Tensor], prefix: str) -> dict[str, str]:
    """Official names that have no place in ours, with the reason."""
    reasons: dict[str, str] = {}
    if model.objective is None:
        reason = "head of the pre-training, which embeddings and labels do not come from"
        reasons = {name: reason for name in weights if name.startswith(tuple(prefix + head for head in HEADS))}
    if model.family == "identifier" and "kernel" in weights:
        reasons["kernel"] = "centres of the patients it was trained to identify"
    return reasons


def _table(config: ModelConfig, *, has_mask_embedding: bool, is_fine_tuned: bool) -> KeyTable:
    """The names of a whole model, of whatever kind."""
    name = config.objective["name"] if config.objective else None
    heads = {"w2v": "objective.", "w2v_cmsc": "objective.w2v."}.get(str(name))
    table = key_table(config.encoder, heads=heads, has_mask_embedding=has_mask_embedding)
    if is_fine_tuned:
        table = below_encoder(table)
    if config.kind == "classifier":
        table |= {f"head.projection.{kind}": (f"proj.{kind}",) for kind in ("weight", "bias")}
    return table


def export_fairseq(folder: Path, checkpoint: Path) -> list[str]:
    """Converts a native folder to a checkpoint that the official implementation loads.

    What came from such a checkpoint gives the same state dict, bit for bit, under today's official names.

    Args:
        folder: the native folder.
        checkpoint: the ``.pt`` file to write.

    Returns:
        Lines for the user on what the file does not say.

    Raises:
        UserError: one line; nothing was written.
    """
    if checkpoint.exists():
        raise UserError(f"{checkpoint}: is there already: name a new file")
    model, tensors = load_tensors(folder)
    config = model.config
    has_mask = config.objective is not None or bool(tensors[_MASK].any())
    if not has_projection(config.encoder):
        for name, tensor in _identity(config.encoder.width).items():
            if not torch.equal(tensors.pop(name), tensor):
                raise UserError(
                    f"{folder}: the official encoder does not project features as wide as the transformer, and {name} is not "
                    f"the identity: this model has no official form"
                )
    table = _table(config, has_mask_embedding=has_mask, is_fine_tuned=config.kind == "classifier")
    content = {
        "cfg": write_cfg(config, has_mask_embedding=has_mask),
        "args": None,
        # Without copies, a file holds the whole tensor that a view is of, once for each view.
        "model": {name: tensor.detach().clone() for name, tensor in to_official(tensors, table).items()},
        "criterion": None,
        "optimizer_history": [
            {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0},
        ],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, "val_loss": None},
    }
    try:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(checkpoint) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]  # torch reports a full disk as a RuntimeError
        raise UserError(f"{checkpoint}: cannot be written ({reason})") from None
    lost = [name for name in tensors if name not in table and name != _MASK]
    notes = [f"left out: {name} (a head that the official implementation does not have)" for name in lost]
    facts = [f"leads {', '.join(config.leads)}", f"normalization {config.normalization}"]
    facts += [f"labels {', '.join(config.labels)}"] if config.labels else []
    return [*notes, f"the file does not say: {'; '.join(facts)}"]


def _identity(width: int) -> dict[str, Tensor]:
    return {f"{_PROJECTION}.weight": torch.eye(width), f"{_PROJECTION}.bias": torch.zeros(width)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
