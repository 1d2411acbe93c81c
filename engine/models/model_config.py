"""``config.json`` of a model's folder: all that is needed to rebuild the model and to prepare its input."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, field_serializer, model_validator

from data_tools.labels import LabelDefinition
from data_tools.leads import LEADS, canonical_lead
from data_tools.recording import SAMPLING_RATE, SEGMENT_SAMPLES
from data_tools.validation import describe_validation_error
from engine.models.encoder import EncoderOptions
from engine.options import Options, UserError

CONFIG_FILE = "config.json"
# Name of the label definition of a classifier converted from elsewhere; the meaning of its labels is unknown.
CONVERTED = "converted"

ModelKind = Literal["encoder", "pretraining", "classifier"]
Normalization = Literal["none", "zscore_per_lead"]


class ModelConfig(Options):
    """The contents of ``config.json``."""

    format: Literal["ecg-engine-model"] = "ecg-engine-model"
    """Identifies the file."""
    format_version: Literal[1] = 1
    """Version of the folder's layout."""
    kind: ModelKind
    """``encoder`` alone, ``pretraining`` (with the heads of its objective) or ``classifier``."""
    encoder: EncoderOptions
    """Architecture. The file also has ``num_leads`` here."""
    objective: dict[str, JsonValue] | None = None
    """Name and options of a pre-training model's objective, as in a run's configuration."""
    leads: Annotated[tuple[str, ...], Field(min_length=1)] = LEADS
    """Names of the leads, in the order of the input's channels."""
    sampling_rate: Annotated[int, Field(gt=0)] = SAMPLING_RATE
    """Sampling rate of the input, in Hz."""
    segment_samples: Annotated[int, Field(gt=0)] = SEGMENT_SAMPLES
    """Length of the training segments, in samples; the model accepts other lengths too."""
    input_unit: Literal["mV"] = "mV"
    """Unit of the input, before normalization."""
    normalization: Normalization = "none"
    """``none``, or ``zscore_per_lead``: each lead minus its mean, divided by its standard deviation, both over the
    10 s of a crop."""
    trained_leads: tuple[str, ...] | None = None
    """Leads that fine-tuning used, the others being zero; null: all."""
    labels: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Names of a classifier's labels, in the order of the logits."""
    label_definition: LabelDefinition | None = None
    """Meaning of the labels: their kind, codes and thresholds; models converted from elsewhere have none."""
    provenance: dict[str, JsonValue] = Field(default_factory=dict)
    """Where the weights come from; free-form."""

    @model_validator(mode="before")
    @classmethod
    def _check_num_leads(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Checks the number of leads that the file repeats among the encoder's options, and removes it."""
        encoder = content.get("encoder")
        if not isinstance(encoder, Mapping) or "num_leads" not in encoder:
            return content
        leads = content.get("leads", LEADS)
        if isinstance(leads, Sequence) and len(leads) != encoder["num_leads"]:
            raise ValueError(f"encoder.num_leads is {encoder['num_leads']}, but 'leads' names {len(leads)}")
        return {**content, "encoder": {key: value for key, value in encoder.items() if key != "num_leads"}}

    @model_validator(mode="after")
    def _check(self) -> Self:
        unknown = [name for name in self.leads if canonical_lead(name) != name]
        if unknown or len(set(self.leads)) < len(self.leads):
            raise ValueError(f"leads must be distinct names among {', '.join(LEADS)}, got {', '.join(self.leads)}")
        if not set(self.trained_leads or ()) <= set(self.leads):
            raise ValueError("'trained_leads' must be among 'leads'")
        if (self.objective is not None) != (self.kind == "pretraining"):
            raise ValueError("'objective' is required for kind 'pretraining' and not allowed for others")
        if self.objective is not None and not isinstance(self.objective.get("name"), str):
            raise ValueError("objective.name is missing")
        if (self.labels is not None) != (self.kind == "classifier"):
            raise ValueError("'labels' are required for kind 'classifier' and not allowed for others")
        if self.label_definition is not None and self.label_definition.classes != self.labels:
            raise ValueError("the classes of 'label_definition' differ from 'labels'")
        if len(set(self.labels or ())) < len(self.labels or ()):
            raise ValueError("'labels' must be distinct")
        return self

    @property
    def definition(self) -> LabelDefinition:
        """Meaning of a classifier's outputs; for a model converted from elsewhere, independent labels without thresholds."""
        assert self.labels is not None
        return self.label_definition or LabelDefinition(name=CONVERTED, kind="multilabel", classes=self.labels)

    @field_serializer("encoder")
    def _write_encoder(self, encoder: EncoderOptions) -> dict[str, JsonValue]:
        return {"num_leads": len(self.leads), **encoder.model_dump(mode="json")}


def read_config(folder: Path) -> ModelConfig:
    """Reads the ``config.json`` of a model's folder.

    Raises:
        UserError: the file cannot be read, or is not the configuration of a model.
    """
    file = folder / CONFIG_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); choose the folder of a model") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not valid JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != "ecg-engine-model":
        raise UserError(f"{folder}: contains no ecg-engine model; engine/convert.py converts other formats")
    if content.get("format_version") != 1:
        raise UserError(
            f"{file}: has format version {content.get('format_version')}, but this release reads version 1; use the release "
            f"that wrote it"
        )
    try:
        return ModelConfig.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{file}: {describe_validation_error(error)}") from None
