"""Predicts labels of ECG recordings with a fine-tuned model.

    python engine/predict.py MODEL INPUT -o OUT.parquet [--leads I,II] [--split NAME]

OUT.parquet (or .csv) has a row for each recording: probability and decision of each class.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from data_tools.command_line import dataset_location, run_script
from data_tools.validation import count
from engine.device import select_device
from engine.evaluation.thresholds import DEFAULT_THRESHOLD
from engine.inference import Predictor, predict_input
from engine.inference.command_line import apply_to_input, make_parser, parse_leads, print_error
from engine.inference.run import PREDICTION_SUFFIXES, check_output
from engine.models import load

_DESCRIPTION = """Predicts the labels of ECG recordings with a fine-tuned model.

The output has a row for each recording: source, recording, num_segments (5-s segments whose predictions were averaged),
and for each class its probability and the decision at the threshold that fine-tuning chose on its validation split.
Recordings may have any sampling rate from 50 to 20,000 Hz and any of the model's leads: they are cut into crops as
`ecg-data build` does, and missing leads are set to zero. Recordings that cannot be read are listed; the others are
written, and the exit status is 1."""

_EXAMPLE = "python engine/predict.py runs/diagnosis/model recordings/clinic -o predictions.parquet"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script.

    Returns:
        0 if all recordings were predicted, 1 if only a part could be, 2 after an error of the user or of the system.
    """
    parser = make_parser("predict", _DESCRIPTION, _EXAMPLE, "split of the dataset (default: all splits)")
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="folder of a model, or of the fine-tuning run that made it")
    add(
        "input",
        type=dataset_location,
        metavar="INPUT",
        help="folder or URL of a dataset, or folder of WFDB recordings (.hea) at any depth",
    )
    add("-o", "--output", type=Path, required=True, metavar="OUT", help="output file, .parquet or .csv")
    add("--overwrite", action="store_true", help="replace the output file if it exists")
    add("--leads", metavar="L", help="leads to use: 12, 6, 3, 2, 1 or names such as I,II (default: as in fine-tuning)")
    options = parser.parse_args(arguments)
    return run_script("predict", partial(_run, options), options.output)


def _run(options: argparse.Namespace) -> int:
    check_output(options.output, PREDICTION_SUFFIXES, overwrite=options.overwrite)
    model = load(options.model)
    leads = None if options.leads is None else parse_leads(options.leads)
    predictor = Predictor(model, leads, select_device(options.device), options.precision)
    if model.config.label_definition is None:
        number = len(predictor.definition.classes)
        print_error("predict", f"the model has no label definition: its {number} labels are assumed to be independent")
    if predictor.definition.thresholds is None and predictor.definition.kind in {"multilabel", "binary"}:
        print_error("predict", f"the model has no thresholds: {DEFAULT_THRESHOLD} is used for every class")
    summary, status = apply_to_input("predict", partial(predict_input, predictor), options)
    sys.stdout.write(
        f"{options.output}: {count(summary.num_recordings, 'recording')}, {count(summary.num_segments, 'segment')}\n"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
