"""Checkpoints of the official implementation (fairseq-signals, ECG-FM) to the native folder, and back."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from data_tools.files import atomic_write, hash_file, printable
from data_tools.leads import LEADS, canonical_lead
from data_tools.validation import first_line
from engine.interop import fairseq_keys as keys
from engine.interop.fairseq_cfg import OfficialModel, read_cfg, write_cfg
from engine.interop.native import empty_tensors, load_tensors
from engine.interop.torch_files import plain_tensors, read_torch_file
from engine.models.model_config import ModelConfig, Normalization
from engine.models.model_folder import check_new_folder, save
from engine.models.model_weights import check_shapes
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
        checkpoint: the ``.pt`` file. No code in it is run.
        folder: the native folder to write.
        normalization: normalization of the input in training, which the checkpoint does not record; None means ``none``.
        leads: names in the order of the input's channels; may be None for twelve leads, whose order the official code fixes.
        labels: file with the names of a classifier's labels: one per line, or a CSV file with a column ``name``.

    Returns:
        Notes for the user: what was ignored or assumed, and why.

    Raises:
        UserError: the checkpoint cannot be converted; nothing was written.
    """
    check_new_folder(folder)
    content = read_torch_file(checkpoint)
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping) or content.get("cfg") is None:
        raise UserError(f"{checkpoint}: not a checkpoint of fairseq-signals: 'cfg' or 'model' is missing")
    weights = plain_tensors(f"{checkpoint}: model", content["model"])
    model = read_cfg(str(checkpoint), content["cfg"])
    notes = [f"ignored: {key} (not part of the model)" for key in content if key not in {"cfg", "model"}]
    config, assumed = _make_config(checkpoint, model, weights, normalization, leads, labels)
    tensors, ignored = _convert_weights(str(checkpoint), model, config, weights)
    save(folder, config, tensors)
    return notes + ignored + assumed


def _make_config(
    checkpoint: Path,
    model: OfficialModel,
    weights: Mapping[str, Tensor],
    normalization: Normalization | None,
    leads: Sequence[str] | None,
    labels: Path | None,
) -> tuple[ModelConfig, list[str]]:
    """Returns the native configuration, and notes on what was assumed."""
    notes = []
    if normalization is None:
        if model.task.normalize:
            raise UserError(
                f"{checkpoint}: cfg.task.normalize is true: training standardized each segment, all leads together, which this "
                f"engine does not do; pass --normalization none and standardize the input yourself"
            )
        normalization = "none"
        notes.append(
            "assumed: --normalization none, as in the paper, because a checkpoint does not record it; convert "
            "ECG-FM with engine/convert.py and --normalization zscore_per_lead"
        )
    if model.task.filter:
        notes.append("note: cfg.task.filter is true: training filtered the signals, which this engine does not do")
    names = None
    if model.family == "classifier":
        names = _label_names(checkpoint, model, weights, labels)
        if labels is None:
            notes.append("assumed: label names label_0, label_1, ..., because a checkpoint does not record them; see --labels")
    elif labels is not None:
        raise UserError(f"{checkpoint}: '{model.name}' is not a classifier and has no labels; omit --labels")
    config = ModelConfig(
        kind="classifier" if names else "pretraining" if model.objective else "encoder",
        encoder=model.encoder,
        objective=model.objective,
        leads=_lead_names(checkpoint, model, leads),
        sampling_rate=model.task.sample_rate,
        normalization=normalization,
        labels=names,
        provenance={
            "source": "fairseq-signals",
            "model": model.name,
            "file": printable(checkpoint.name),
            "sha256": hash_file(checkpoint),
        },
    )
    return config, notes


def _lead_names(checkpoint: Path, model: OfficialModel, leads: Sequence[str] | None) -> tuple[str, ...]:
    number = model.num_leads
    if leads is None:
        if number != len(LEADS):
            raise UserError(f"{checkpoint}: the model has {number} leads: list them in order with --leads I,II,...")
        return LEADS
    names = [canonical_lead(name) for name in leads]
    unknown = [name for name, known in zip(leads, names, strict=True) if known is None]
    if unknown:
        raise UserError(f"--leads: unknown lead '{unknown[0]}'; known: {', '.join(LEADS)}")
    if len(set(names)) != number or len(names) != number:
        raise UserError(f"--leads: expected {number} distinct leads for the model in {checkpoint}, got {len(names)}")
    return tuple(name for name in names if name is not None)


def _label_names(checkpoint: Path, model: OfficialModel, weights: Mapping[str, Tensor], labels: Path | None) -> tuple[str, ...]:
    number = model.num_labels or (weights["proj.bias"].numel() if "proj.bias" in weights else 0)
    if number < 1:
        raise UserError(
            f"{checkpoint}: the number of labels is unknown: cfg.model.num_labels is {model.num_labels}, and the weights have "
            "no proj.bias; get another copy of the checkpoint"
        )
    if labels is None:
        return tuple(f"label_{i}" for i in range(number))
    try:
        lines = labels.read_text(encoding="utf-8-sig").splitlines()
        if labels.suffix.lower() == ".csv":
            lines = [row["name"] or "" for row in csv.DictReader(lines)]
    except KeyError:
        raise UserError(f"{labels}: a CSV file of labels needs a column 'name'") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise UserError(f"{labels}: cannot be read ({reason})") from None
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != number or len(set(names)) != number:
        raise UserError(f"{labels}: expected {number} distinct labels for {checkpoint}, got {len(set(names))}")
    return names


def _convert_weights(
    where: str, model: OfficialModel, config: ModelConfig, weights: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Returns our tensors, and a note on every official tensor that was not used."""
    prefix = "encoder." if model.is_fine_tuned else ""
    weights = keys.rename_to_current(weights, prefix)
    has_mask = model.family in {"w2v", "w2v_cmsc"} or f"{prefix}mask_emb" in weights
    ignored = _find_ignored(model, weights, prefix)
    weights = {name: tensor for name, tensor in weights.items() if name not in ignored}
    table = _table(config, has_mask_embedding=has_mask, is_fine_tuned=model.is_fine_tuned)
    expected = empty_tensors(where, config)
    check_shapes(where, weights, keys.to_official(expected, table))
    tensors = keys.to_ours(weights, table, {name: tensor.shape for name, tensor in expected.items()})
    notes = [f"ignored: {name} ({reason})" for name, reason in ignored.items()]
    if not has_mask:
        tensors[_MASK] = torch.zeros(config.encoder.width)
        notes.append("zero: the mask embedding, which the checkpoint lacks and only pre-training uses")
    if not keys.has_projection(config.encoder):
        tensors |= _identity(config.encoder.width)
        notes.append("identity: the projection of the features, which the official model omits when the widths are equal")
    return tensors, notes


def _find_ignored(model: OfficialModel, weights: Mapping[str, Tensor], prefix: str) -> dict[str, str]:
    """Returns the official tensors that this engine does not use, with the reason."""
    reasons: dict[str, str] = {}
    if model.objective is None:
        reason = "pre-training head, not needed for embeddings and labels"
        reasons = {name: reason for name in weights if name.startswith(tuple(prefix + head for head in keys.HEADS))}
    if model.family == "identifier" and "kernel" in weights:
        reasons["kernel"] = "class centers of the patients in training"
    return reasons


def _table(config: ModelConfig, *, has_mask_embedding: bool, is_fine_tuned: bool) -> keys.KeyTable:
    """Returns the table of names for a whole model of any kind."""
    name = config.objective["name"] if config.objective else None
    heads = {"w2v": "objective.", "w2v_cmsc": "objective.w2v."}.get(str(name))
    table = keys.key_table(config.encoder, heads=heads, has_mask_embedding=has_mask_embedding)
    if is_fine_tuned:
        table = keys.below_encoder(table)
    if config.kind == "classifier":
        table |= {f"head.projection.{kind}": (f"proj.{kind}",) for kind in ("weight", "bias")}
    return table


def export_fairseq(folder: Path, checkpoint: Path) -> list[str]:
    """Converts a native folder to a checkpoint that the official implementation loads.

    Weights that were imported from such a checkpoint are exported bit for bit, under the current official names.

    Args:
        folder: the native folder.
        checkpoint: the ``.pt`` file to write.

    Returns:
        Notes for the user: what the file lacks.

    Raises:
        UserError: the model cannot be converted; nothing was written.
    """
    if checkpoint.exists():
        raise UserError(f"{checkpoint}: already exists: choose a new file")
    model, tensors = load_tensors(folder)
    config = model.config
    if config.encoder.output_layers > 1:
        raise UserError(
            f"{folder}: cannot be exported: its output is the mean over the last {config.encoder.output_layers} blocks, but "
            "the official encoder returns only the output of the last block"
        )
    has_mask = config.objective is not None or bool(tensors[_MASK].any())
    if not keys.has_projection(config.encoder):
        for name, tensor in _identity(config.encoder.width).items():
            if not torch.equal(tensors.pop(name), tensor):
                raise UserError(
                    f"{folder}: cannot be exported: {name} is not the identity, but the official encoder has no projection "
                    f"if the features are as wide as the transformer"
                )
    table = _table(config, has_mask_embedding=has_mask, is_fine_tuned=config.kind == "classifier")
    content = {
        "cfg": write_cfg(config, has_mask_embedding=has_mask),
        "args": None,
        # Without copies, the file would contain the whole base tensor of each view.
        "model": {name: tensor.detach().clone() for name, tensor in keys.to_official(tensors, table).items()},
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
        reason = getattr(error, "strerror", None) or first_line(error)  # PyTorch reports a full disk as a RuntimeError
        raise UserError(f"{checkpoint}: cannot be written ({reason})") from None
    omitted = [name for name in tensors if name not in table and name != _MASK]
    notes = [f"omitted: {name} (the official implementation has no such head)" for name in omitted]
    facts = [f"leads {', '.join(config.leads)}", f"normalization {config.normalization}"]
    facts += [f"labels {', '.join(config.labels)}"] if config.labels else []
    return [*notes, f"not recorded in the file: {'; '.join(facts)}"]


def _identity(width: int) -> dict[str, Tensor]:
    return {f"{_PROJECTION}.weight": torch.eye(width), f"{_PROJECTION}.bias": torch.zeros(width)}
