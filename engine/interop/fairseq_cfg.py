"""The ``cfg`` of an official checkpoint: reads what it says about the model, and writes one for a model of this engine.

The official implementation is fairseq-signals (https://github.com/Jwoo5/fairseq-signals), which ECG-FM uses too. Its ``cfg`` is
a nested dict; missing keys have the defaults of the official configuration classes. Nothing in it is evaluated.
"""

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from data_tools.recording import SAMPLING_RATE
from data_tools.validation import describe_validation_error, shorten
from engine.interop.native import objective_section
from engine.models import EncoderOptions, ModelConfig
from engine.objectives import W2VOptions
from engine.options import Options, UserError

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
"""``cfg.model._name`` -> kind of model: pre-training, with heads or without, or fine-tuned (tensors below ``encoder.``)."""

_FINE_TUNED: Final = frozenset({"classifier", "identifier"})
# Keys that fine-tuning sets again, with defaults; the nested cfg of pre-training describes the rest of the encoder.
_FINE_TUNING_DEFAULTS: Final = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "dropout_input": 0.0,
    "feature_grad_mult": 0.0,
}

_MAX_BLOCKS = 64
_Number = Annotated[int, Field(strict=True, ge=0)]
_LAYERS = TypeAdapter(Annotated[list[tuple[_Number, _Number, _Number]], Field(min_length=1, max_length=_MAX_BLOCKS)])


def parse_conv_layers(value: Any) -> list[tuple[int, int, int]]:
    """Returns the convolutions (channels, kernel, stride) of ``conv_feature_layers`` without evaluating it.

    Args:
        value: lists of integer triples, optionally multiplied and added, such as ``[(256, 2, 2)] * 4``; or the list itself.

    Raises:
        ValueError: anything else.
    """
    layers = _parse_sum(value) if isinstance(value, str) else value
    try:
        return _LAYERS.validate_python([tuple(layer) for layer in layers])
    except (TypeError, ValueError):
        reason = f"is not a list of 1 to {_MAX_BLOCKS} triples of integers (channels, kernel, stride)"
        raise ValueError(f"{shorten(value)} {reason}") from None


def _parse_sum(text: str) -> list[Any]:
    layers: list[Any] = []
    try:
        for term in text.split("+"):
            literal, _, number = term.partition("*")
            layers += ast.literal_eval(literal.strip()) * min(int(number or 1), _MAX_BLOCKS + 1)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(
            f"{shorten(text)} is not [(channels, kernel, stride), ...] * number, or a sum of such terms: other expressions "
            "are not evaluated"
        ) from None
    return layers


def _parse_temperatures(value: Any) -> tuple[float, float, float]:
    parts = value.strip("()[] ").split(",") if isinstance(value, str) else value
    try:
        start, end, decay = (float(part) for part in parts)
    except (TypeError, ValueError):
        raise ValueError(f"expected three numbers (start, end, decay), got {shorten(value)}") from None
    return start, end, decay


# No model is larger.
_Size = Annotated[int, Field(le=1_000_000)]


class _Section(BaseModel):
    """The relevant keys of a part of the cfg, with strict types; fields have our names, with the official ones as aliases."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    def shared(self, options: type[Options]) -> dict[str, Any]:
        """Returns the values that are also fields of ``options``."""
        return self.model_dump(include=set(options.model_fields))

    @classmethod
    def official(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns our values for the keys of this section, under their official names."""
        return {field.alias or name: values[name] for name, field in cls.model_fields.items() if name in values}


class _Cfg(_Section):
    model: dict[Any, Any]
    task: dict[Any, Any] | None = None


class OfficialTask(_Section):
    """``cfg.task``: sampling rate in Hz, and whether training standardized each segment and filtered the signals."""

    sample_rate: int = Field(SAMPLING_RATE, ge=1)
    normalize: bool = False
    filter: bool = False


class _Encoder(_Section):
    conv_feature_layers: Annotated[list[tuple[int, int, int]], BeforeValidator(parse_conv_layers)] = [(256, 2, 2)] * 4
    extractor_mode: Literal["default", "layer_norm"] = "default"
    in_d: _Size = 12
    feature_grad_scale: float = Field(1.0, alias="feature_grad_mult")
    feature_dropout: float = Field(0.0, alias="dropout_features")
    input_dropout: float = Field(0.0, alias="dropout_input")
    width: _Size = Field(768, alias="encoder_embed_dim")
    depth: _Size = Field(12, alias="encoder_layers")
    num_heads: _Size = Field(12, alias="encoder_attention_heads")
    mlp_width: _Size = Field(3072, alias="encoder_ffn_embed_dim")
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.0
    pos_kernel: _Size = Field(128, alias="conv_pos")
    pos_groups: _Size = Field(16, alias="conv_pos_groups")
    layer_norm_first: bool = False
    conv_bias: bool = False
    quantize_input: bool = False

    @field_validator("layer_norm_first", "conv_bias", "quantize_input")
    @classmethod
    def _refuse_true(cls, value: bool) -> bool:
        if value:
            raise ValueError("true is not supported by this engine's encoder")
        return value

    @field_validator("conv_feature_layers")
    @classmethod
    def _check_layers(cls, layers: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        if len(set(layers)) > 1 or layers[0][1:] != (2, 2):
            raise ValueError(f"{shorten(layers)}: this engine supports only blocks of kernel 2, stride 2 and equal width")
        return layers

    def to_options(self) -> EncoderOptions:
        return EncoderOptions.model_validate(
            self.shared(EncoderOptions)
            | {
                "feature_channels": self.conv_feature_layers[0][0],
                "feature_blocks": len(self.conv_feature_layers),
                "norm": "group_norm" if self.extractor_mode == "default" else "layer_norm",
            }
        )


class _W2V(_Section):
    encoder_embed_dim: _Size = 768
    quantize_targets: bool = False
    target_glu: bool = False
    mask_span: _Size = Field(10, alias="mask_length")
    mask_prob: float = 0.65
    num_negatives: _Size = 100
    temperature: float = Field(0.1, alias="logit_temp")
    final_width: _Size = Field(0, alias="final_dim")
    num_codebooks: _Size = Field(2, alias="latent_groups")
    num_codes: _Size = Field(320, alias="latent_vars")
    code_width: _Size = Field(0, alias="latent_dim")
    latent_temp: Annotated[tuple[float, float, float], BeforeValidator(_parse_temperatures)] = (2.0, 0.5, 0.999995)

    def to_objective(self, family: Family) -> dict[str, Any] | None:
        """Returns the section ``objective`` to continue training with; None if no objective of ours has such heads."""
        if not self.quantize_targets or self.target_glu:
            return None
        final_width = self.final_width if self.final_width > 0 else self.encoder_embed_dim
        # What the cfg does not record is as in the preset official_w2v_cmsc_rlm.
        w2v = self.shared(W2VOptions) | {
            "masking": "fixed_count",
            "mask_probability": min(1.0, self.mask_prob / max(1, self.mask_span)),
            "final_width": final_width,
            "code_width": self.code_width if self.code_width > 0 else final_width,
            **dict(zip(("gumbel_start", "gumbel_end", "gumbel_decay"), self.latent_temp, strict=True)),
        }
        cmsc = {
            "form": "symmetric",
            "positives": "all",
            "identity": "recording",
            "negatives": "own_rank",
            "constant_norms": True,
        }
        return objective_section(family, {"w2v": w2v, "cmsc": cmsc} if family == "w2v_cmsc" else w2v)


class _Classifier(_Section):
    num_labels: _Size | None = None
    output_size: _Size = 0


@dataclass(frozen=True)
class OfficialModel:
    """The model that a ``cfg`` describes.

    Attributes:
        name: ``cfg.model._name``.
        family: see :data:`MODELS`.
        task: ``cfg.task``: the sampling rate in Hz, and whether training standardized and filtered the signals.
        encoder: our options for the same architecture.
        num_leads: number of leads of the input.
        objective: our section for its pre-training heads; None if it has none that this engine supports.
        num_labels: number of labels of a classifier.
    """

    name: str
    family: Family
    task: OfficialTask
    encoder: EncoderOptions
    num_leads: int
    objective: dict[str, Any] | None
    num_labels: int | None

    @property
    def is_fine_tuned(self) -> bool:
        """Whether the encoder's tensors are below ``encoder.``."""
        return self.family in _FINE_TUNED


def read_cfg(where: str, cfg: object) -> OfficialModel:
    """Reads what a cfg says about the model.

    Args:
        where: the checkpoint, for errors.
        cfg: the checkpoint's ``cfg``.

    Raises:
        UserError: an unknown model, a value of the wrong type, an expression, or an architecture that this engine does not
            have.
    """
    with _errors_in(where, "cfg"):
        root = _Cfg.model_validate(cfg)
    with _errors_in(where, "cfg.task"):
        task = OfficialTask.model_validate(root.task or {})
    name = root.model.get("_name")
    if not isinstance(name, str) or name not in MODELS:
        raise UserError(f"{where}: cfg.model._name: unknown model {shorten(name)}; known: {', '.join(MODELS)}")
    family = MODELS[name]
    path, values = _encoder_section(root.model, is_fine_tuned=family in _FINE_TUNED)
    with _errors_in(where, path):
        encoder = _Encoder.model_validate(values)
        options = encoder.to_options()
    objective = num_labels = None
    with _errors_in(where, "cfg.model"):
        if family == "classifier":
            classifier = _Classifier.model_validate(root.model)
            num_labels = classifier.output_size if classifier.num_labels is None else classifier.num_labels
        elif family in {"w2v", "w2v_cmsc"}:
            objective = _W2V.model_validate(root.model).to_objective(family)
    return OfficialModel(name, family, task, options, encoder.in_d, objective, num_labels)


@contextmanager
def _errors_in(where: str, path: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise UserError(f"{where}: {describe_validation_error(error, path)}") from None


def _encoder_section(model: Mapping[Any, Any], *, is_fine_tuned: bool) -> tuple[str, Mapping[Any, Any]]:
    """Returns the part of the cfg that describes the encoder, and its path."""
    if not is_fine_tuned:
        return "cfg.model", model
    pretraining = model.get("args")
    if not isinstance(pretraining, Mapping) or not isinstance(pretraining.get("model"), Mapping):
        return "cfg.model", {**_FINE_TUNING_DEFAULTS, **model}
    own = {key: model[key] for key in _FINE_TUNING_DEFAULTS if key in model}
    return "cfg.model.args.model", {**_FINE_TUNING_DEFAULTS, **pretraining["model"], **own}


def write_cfg(config: ModelConfig, *, has_mask_embedding: bool) -> dict[str, Any]:
    """Returns the official ``cfg`` of a model of ours: its architecture, and what the official loaders need."""
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
        "layer_norm_first": False,
        "encoder_layerdrop": 0.0,
        "apply_mask": has_mask_embedding,
        "mask_prob": 0.0,
        "mask_length": 10,
        **_Encoder.official(encoder.model_dump()),
    }
    if w2v is not None:
        model |= _W2V.official(w2v) | {
            "mask_prob": w2v["mask_probability"] * w2v["mask_span"],
            "quantize_targets": True,
            "quantize_input": False,
            "target_glu": False,
            "latent_temp": [w2v["gumbel_start"], w2v["gumbel_end"], w2v["gumbel_decay"]],
        }
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
