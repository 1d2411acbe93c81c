"""Predictions from `engine/predict.py` as text."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset

from data_tools.validation import one_line

_NUM_OTHERS = 3  # classes that were not predicted, the most probable first


def describe_prediction(file: Path, source: str, recording: str) -> str:
    """Returns the prediction for a recording: a line of predicted classes with probabilities, and one of the likeliest others.

    Raises:
        ValueError: the file is not a table of predictions, or does not contain the recording.
    """
    if file.suffix not in {".parquet", ".csv"}:
        raise ValueError(f"{file}: predictions must be in a .parquet or .csv file, as engine/predict.py writes it")
    field = pyarrow.dataset.field
    # A recording may be named 00123.
    text = pyarrow.csv.ConvertOptions(column_types={"source": pa.string(), "recording": pa.string()})
    form: Any = "parquet" if file.suffix == ".parquet" else pyarrow.dataset.CsvFileFormat(convert_options=text)
    try:
        table = pyarrow.dataset.dataset(file, format=form)
        rows = table.to_table(filter=(field("source") == source) & (field("recording") == recording)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{file}: cannot be read as predictions of engine/predict.py ({one_line(error)})") from None
    if not rows:
        raise ValueError(f"{file}: no prediction for {source}/{recording}; run engine/predict.py on the dataset")
    description = _describe(rows[0])
    if description is None:
        raise ValueError(f"{file}: has no columns of predictions; choose a table that engine/predict.py wrote")
    return description


def _describe(row: dict[str, Any]) -> str | None:
    """Describes a row of predictions; None if it has no columns of predictions."""
    values = _with_prefix(row, "value_")
    if values:
        return "predicted: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    probabilities = dict(sorted(_with_prefix(row, "probability_").items(), key=lambda item: -item[1]))
    if not probabilities:
        return None
    decisions = _with_prefix(row, "decision_") or {name: name == row["decision"] for name in probabilities}
    texts = {name: f"{name} {probability:.2f}" for name, probability in probabilities.items()}
    predicted = ", ".join(text for name, text in texts.items() if decisions[name]) or "no class"
    others = ", ".join([text for name, text in texts.items() if not decisions[name]][:_NUM_OTHERS])
    return f"predicted: {predicted}" + (f"\nnot predicted: {others}" if others else "")


def _with_prefix(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}
