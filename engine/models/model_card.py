"""The model card, ``README.md`` of a model's folder."""

from typing import Any

from engine.models.model_config import ModelConfig

CARD_FILE = "README.md"
# Metadata for the Hugging Face Hub.
_METADATA = "---\nlibrary_name: ecg-engine\ntags:\n- ecg\n---\n"


def model_card(config: ModelConfig) -> str:
    """Returns the model card: what the model is, its input and output, and where it comes from."""
    encoder = config.encoder
    output = {
        "encoder": "an embedding of each segment",
        "pretraining": "an embedding of each segment; the heads of its pre-training are included",
        "classifier": f"predictions of {len(config.labels or ())} labels, and an embedding",
    }[config.kind]
    objective: Any = config.objective
    rows = {
        "kind": config.kind + (f", objective {objective['name']}" if objective else ""),
        "output": output,
        "encoder": f"{encoder.depth} transformer blocks, width {encoder.width}, {encoder.num_heads} heads; "
        f"{encoder.feature_blocks} convolution blocks of {encoder.feature_channels} channels ({encoder.norm})",
        "leads, in order": ", ".join(config.leads),
        "input": f"{config.sampling_rate} Hz, {config.input_unit}, segments of {config.segment_samples} samples",
        "normalization": {"none": "none", "zscore_per_lead": "z-score of each lead"}[config.normalization],
    }
    if config.labels:
        rows["labels, in order"] = ", ".join(config.labels)
    rows |= {name: str(value) for name, value in config.provenance.items() if value is not None}
    table = "\n".join(f"| {name} | {' '.join(value.replace('|', '/').split())} |" for name, value in rows.items())
    call = "predict" if config.kind == "classifier" else "embed"
    return (
        f"{_METADATA}# ECG model\n\nFor research; not a medical device.\n\n| | |\n|---|---|\n{table}\n\n## Use\n\n"
        f"    import engine.models\n    model = engine.models.load(DIR)\n"
        f"    result = model.{call}(signals, leads=NAMES, sampling_rate=HZ)  # [leads, samples] or [batch, leads, samples]\n"
    )
