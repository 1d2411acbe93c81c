"""What the ``cfg`` of a checkpoint of the official implementation says of its model, and such a ``cfg`` for ours.

The official implementation is fairseq-signals (https://github.com/Jwoo5/fairseq-signals), ECG-FM's too. Its ``cfg`` is a
nested dict; a key that is absent has the default of the official configuration classes. Nothing in it is evaluated.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError

from data_tools.recording import SAMPLING_RATE
from engine.interop.native import objective_section
from engine.models import EncoderOptions, ModelConfig
from engine.models.pretrained import describe_mistake
from engine.options import UserError

Family = Literal["w2v", "w2v_cmsc", "encoder", "classifier", "identifier"]

MODELS: Final[dict[str, Family]] = {
    "wav2vec2": "w2v",
    "wav2vec2_cmsc": "w2v_cmsc",
    "wav2vec2_clocs": "w2v_cmsc",
    "ecg_transformer": "encoder",
    "clocs": "encoder",
    "simclr": "encoder",
    "3kg": "encoder",
    "ecg_transformer_classifier": "classifier",
    "linear_projection": "classifier",
    "arcface": "identifier",
}
"""``cfg.model._name`` -> what it is: pre-training with heads or without any, or fine-tuned (tensors below ``encoder.``)."""

_FINE_TUNED: Final = frozenset({"classifier", "identifier"})
# What fine-tuning sets anew; the rest of its encoder is as in the cfg of the pre-training, which it keeps.
_SET_ANEW = ("dropout", "attention_dropout", "dropout_input", "feature_grad_mult")

# No model is larger; a cfg that says so would have us build modules for hours.
_LARGEST_NUMBER = 1_000_000
_MOST_LAYERS = 1_000
_MAX_BLOCKS = 64
_TUPLE = r"\( *\d{1,6} *, *\d{1,6} *, *\d{1,6} *,? *\)"
_LIST = rf"\[ *{_TUPLE}(?: *, *{_TUPLE})* *,? *\]"
_TERM = re.compile(rf" *({_LIST})(?: *\* *(\d{{1,2}}))? *(\+|$)")


@dataclass(frozen=True)
class OfficialModel:
    """The model that a ``cfg`` describes.

    Attributes:
        name: ``cfg.model._name``.
        family: see :data:`MODELS`.
        encoder: of ours, of the same architecture.
        num_leads: of the input.
        objective: section of ours for its pre-training heads; None without such heads, or if ours has no such objective.
        num_labels: of a classifier.
        sampling_rate: Hz.
        is_standardized: whether its training standardized each segment, all leads together.
        is_filtered: whether its training filtered the signals.
    """

    name: str
    family: Family
    encoder: EncoderOptions
    num_leads: int
    objective: dict[str, Any] | None
    num_labels: int | None
    sampling_rate: int
    is_standardized: bool
    is_filtered: bool

    @property
    def is_fine_tuned(self) -> bool:
        """Whether the encoder's tensors are below ``encoder.``."""
        return self.family in _FINE_TUNED


class _Section:
    """A part of the cfg, read by type: a value of another type is an error that names it."""

    def __init__(self, where: str, path: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: {path} is {_short(values)}, not a mapping: this is no checkpoint of fairseq-signals")
        self.where, self.path, self.values = where, path, values

    def integer(self, key: str, default: int) -> int:
        value = int(self._typed(key, default, (int,), "an integer"))
        if value > _LARGEST_NUMBER:
            raise self.error(key, f"is {value}, more than {_LARGEST_NUMBER}")
        return value

    def number(self, key: str, default: float) -> float:
        value = float(self._typed(key, default, (int, float), "a number"))
        if not math.isfinite(value):
            raise self.error(key, f"is {value}, not a finite number")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"is {_short(value)}, not true or false")
        return value

    def error(self, key: str, text: str) -> UserError:
        return UserError(f"{self.where}: {self.path}.{key} {text}")

    def _typed(self, key: str, default: float, types: tuple[type, ...], what: str) -> Any:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, types):
            raise self.error(key, f"is {_short(value)}, not {what}")
        return value


def read_cfg(where: str, cfg: object) -> OfficialModel:
    """Reads the model's part of a cfg.

    Args:
        where: the checkpoint, for errors.
        cfg: the checkpoint's ``cfg``.

    Raises:
        UserError: one line: an unknown model, a value of the wrong type, an expression, or an architecture that this
            engine does not have.
    """
    root = _Section(where, "cfg", cfg)
    model = _Section(where, "cfg.model", root.values.get("model"))
    task = _Section(where, "cfg.task", root.values.get("task") or {})
    name = model.values.get("_name")
    if not isinstance(name, str) or name not in MODELS:
        raise model.error("_name", f"is {_short(name)}, no model that this engine knows; it knows {', '.join(MODELS)}")
    family = MODELS[name]
    rate = task.integer("sample_rate", SAMPLING_RATE)
    if rate < 1:
        raise task.error("sample_rate", f"is {rate}, and a sampling rate in Hz is 1 or more")
    encoder = model
    pretraining = model.values.get("args")
    if family in _FINE_TUNED and isinstance(pretraining, Mapping) and isinstance(pretraining.get("model"), Mapping):
        anew = {key: model.values[key] for key in _SET_ANEW if key in model.values}
        encoder = _Section(where, "cfg.model.args.model", {**pretraining["model"], **anew})
    return OfficialModel(
        name=name,
        family=family,
        encoder=_encoder(encoder, is_fine_tuned=family in _FINE_TUNED),
        num_leads=encoder.integer("in_d", 12),
        objective=_objective(model, family),
        num_labels=model.integer("num_labels", model.integer("output_size", 0)) if family == "classifier" else None,
        sampling_rate=rate,
        is_standardized=task.flag("normalize", default=False),
        is_filtered=task.flag("filter", default=False),
    )


def parse_conv_layers(value: Any) -> list[tuple[int, int, int]]:
    """The convolutions (channels, kernel, stride) in ``conv_feature_layers``, without evaluating anything.

    Args:
        value: lists of triples of integers, each perhaps times a number, added up, such as ``[(256, 2, 2)] * 4``; or the
            list itself.

    Raises:
        ValueError: anything else.
    """
    layers = _parse_text(value) if isinstance(value, str) else value
    try:
        triples = [(channels, kernel, stride) for channels, kernel, stride in layers]
    except (TypeError, ValueError):
        raise ValueError("not a list of (channels, kernel, stride)") from None
    if any(type(number) is not int for triple in triples for number in triple):
        raise ValueError("not a list of three integers each")
    if not 1 <= len(triples) <= _MAX_BLOCKS:
        raise ValueError(f"has {len(triples)} convolutions, and 1 to {_MAX_BLOCKS} are possible")
    return triples


def _parse_text(text: str) -> list[tuple[int, int, int]]:
    layers: list[tuple[int, int, int]] = []
    position, more = 0, True
    while more:
        match = _TERM.match(text, position) if len(text) < 10_000 else None
        if match is None:
            raise ValueError("not of the form [(channels, kernel, stride), ...] * number, and no expression is evaluated")
        numbers = [int(digits) for digits in re.findall(r"\d+", match[1])]
        layers += list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)) * int(match[2] or 1)
        position, more = match.end(), match[3] == "+"
    return layers


def _encoder(model: _Section, *, is_fine_tuned: bool) -> EncoderOptions:
    for key, reason in (
        ("layer_norm_first", "normalizes before each half of a block"),
        ("conv_bias", "has biases in its convolutions"),
        ("quantize_input", "quantizes its input"),
    ):
        if model.flag(key, default=False):
            raise model.error(key, f"is true: the model {reason}, which this engine's encoder does not")
    text = model.values.get("conv_feature_layers", "[(256, 2, 2)] * 4")
    try:
        layers = parse_conv_layers(text)
    except ValueError as error:
        raise model.error("conv_feature_layers", f"is {_short(text)}: {error}") from None
    if len(set(layers)) > 1 or layers[0][1:] != (2, 2):
        raise model.error(
            "conv_feature_layers", f"is {_short(text)}: this engine has blocks of kernel 2, stride 2 and equal width only"
        )
    mode = model.values.get("extractor_mode", "default")
    if mode not in ("default", "layer_norm"):
        raise model.error("extractor_mode", f"is {_short(mode)}, and 'default' and 'layer_norm' are known")
    if model.integer("encoder_layers", 12) > _MOST_LAYERS:
        raise model.error("encoder_layers", f"is more than {_MOST_LAYERS}")
    try:
        return EncoderOptions(
            feature_channels=layers[0][0],
            feature_blocks=len(layers),
            norm="group_norm" if mode == "default" else "layer_norm",
            feature_grad_scale=model.number("feature_grad_mult", 0.0 if is_fine_tuned else 1.0),
            feature_dropout=model.number("dropout_features", 0.0),
            input_dropout=model.number("dropout_input", 0.0),
            width=model.integer("encoder_embed_dim", 768),
            depth=model.integer("encoder_layers", 12),
            num_heads=model.integer("encoder_attention_heads", 12),
            mlp_width=model.integer("encoder_ffn_embed_dim", 3072),
            dropout=model.number("dropout", 0.0 if is_fine_tuned else 0.1),
            attention_dropout=model.number("attention_dropout", 0.0 if is_fine_tuned else 0.1),
            pos_kernel=model.integer("conv_pos", 128),
            pos_groups=model.integer("conv_pos_groups", 16),
        )
    except ValidationError as error:
        raise UserError(f"{model.where}: {model.path}: {describe_mistake(error)}") from None


def _objective(model: _Section, family: Family) -> dict[str, Any] | None:
    """The objective's section, for training on; None if ours has no such heads."""
    if family not in {"w2v", "w2v_cmsc"}:
        return None
    if not model.flag("quantize_targets", default=False) or model.flag("target_glu", default=False):
        return None
    final_width = model.integer("final_dim", 0)
    final_width = final_width if final_width > 0 else model.integer("encoder_embed_dim", 768)
    code_width = model.integer("latent_dim", 0)
    temperatures = _temperatures(model)
    # Beyond what the cfg says, the official training is that of the preset official_w2v_cmsc_rlm.
    w2v = {
        "masking": "fixed_count",
        "mask_span": model.integer("mask_length", 10),
        "mask_probability": min(1.0, model.number("mask_prob", 0.65) / max(1, model.integer("mask_length", 10))),
        "num_negatives": model.integer("num_negatives", 100),
        "temperature": model.number("logit_temp", 0.1),
        "final_width": final_width,
        "num_codebooks": model.integer("latent_groups", 2),
        "num_codes": model.integer("latent_vars", 320),
        "code_width": code_width if code_width > 0 else final_width,
        "gumbel_start": temperatures[0],
        "gumbel_end": temperatures[1],
        "gumbel_decay": temperatures[2],
    }
    cmsc = {"form": "symmetric", "negatives": "own_rank", "constant_norms": True}
    options = {"w2v": w2v, "cmsc": cmsc} if family == "w2v_cmsc" else w2v
    try:
        return objective_section(family, options)
    except ValidationError as error:
        raise UserError(f"{model.where}: {model.path}: {describe_mistake(error)}") from None


def _temperatures(model: _Section) -> tuple[float, float, float]:
    value = model.values.get("latent_temp", (2.0, 0.5, 0.999995))
    parts = value.strip("()[] ").split(",") if isinstance(value, str) else value
    try:
        start, end, decay = (float(part) for part in parts)
    except (TypeError, ValueError):
        raise model.error("latent_temp", f"is {_short(value)}, not three numbers: start, end, decay") from None
    return start, end, decay


def write_cfg(config: ModelConfig, *, has_mask_embedding: bool) -> dict[str, Any]:
    """The official ``cfg`` of one of our models: architecture, and what the official loaders ask of it."""
    encoder = config.encoder
    objective: Any = config.objective
    name, w2v = "ecg_transformer", None
    if objective is not None and objective["name"] in {"w2v", "w2v_cmsc"}:
        is_sum = objective["name"] == "w2v_cmsc"
        name, w2v = ("wav2vec2_cmsc", objective["w2v"]) if is_sum else ("wav2vec2", objective)
    shared = {"normalize": False, "filter": False, "data": ""}
    model: dict[str, Any] = shared | {
        "_name": name,
        "all_gather": False,
        "saliency": False,
        "extractor_mode": "default" if encoder.norm == "group_norm" else "layer_norm",
        "conv_feature_layers": f"[({encoder.feature_channels}, 2, 2)] * {encoder.feature_blocks}",
        "in_d": len(config.leads),
        "conv_bias": False,
        "feature_grad_mult": encoder.feature_grad_scale,
        "conv_pos": encoder.pos_kernel,
        "conv_pos_groups": encoder.pos_groups,
        "encoder_layers": encoder.depth,
        "encoder_embed_dim": encoder.width,
        "encoder_ffn_embed_dim": encoder.mlp_width,
        "encoder_attention_heads": encoder.num_heads,
        "layer_norm_first": False,
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attention_dropout,
        "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "dropout_input": encoder.input_dropout,
        "dropout_features": encoder.feature_dropout,
        "apply_mask": has_mask_embedding,
        "mask_prob": 0.0,
        "mask_length": 10,
    }
    if w2v is not None:
        model |= _write_heads(w2v)
    if config.labels is not None:
        model |= {
            "_name": "ecg_transformer_classifier",
            "num_labels": len(config.labels),
            "model_path": None,
            "no_pretrained_weights": True,
            "final_dropout": 0.0,
        }
    task = shared | {"_name": "ecg_pretraining" if config.labels is None else "ecg_classification"}
    return {"task": task | {"sample_rate": config.sampling_rate}, "model": model, "criterion": None, "lr_scheduler": None}


def _write_heads(w2v: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "mask_prob": w2v["mask_probability"] * w2v["mask_span"],
        "mask_length": w2v["mask_span"],
        "final_dim": w2v["final_width"],
        "quantize_targets": True,
        "quantize_input": False,
        "target_glu": False,
        "latent_vars": w2v["num_codes"],
        "latent_groups": w2v["num_codebooks"],
        "latent_dim": w2v["code_width"],
        "latent_temp": [w2v["gumbel_start"], w2v["gumbel_end"], w2v["gumbel_decay"]],
        "logit_temp": w2v["temperature"],
        "num_negatives": w2v["num_negatives"],
    }


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
