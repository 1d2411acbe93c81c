"""Embeds ECG recordings with a trained model.

    python engine/embed.py --model DIR --input DATASET_OR_WFDB_FOLDER --output OUT.npz [--leads I,II] [--split NAME]

``--help`` describes OUT.npz.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from data_tools.command_line import dataset_location, run_script
from data_tools.validation import count
from engine.device import select_device
from engine.inference import Embedder, embed_input
from engine.inference.command_line import apply_to_input, make_parser, parse_leads
from engine.inference.run import EMBEDDING_SUFFIXES, check_output
from engine.models import load

_DESCRIPTION = """Computes embeddings of ECG recordings, one vector per 5-s segment.

OUT.npz contains embedding float32 [N, segments, width] (NaN for incomplete segments), num_segments [N] (complete
segments), and key, source, recording, leads and labels [N] (text, comma-separated), sorted by key. Recordings may have
any sampling rate from 50 to 20,000 Hz and any of the 12 leads: they are cut into crops as `ecg-data build` does, and
missing leads are set to zero. Recordings that cannot be read are listed; the others are written, and the exit status is 1."""

_EXAMPLE = "python engine/embed.py --model models/first --input recordings/clinic --output clinic.npz --leads I,II"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script.

    Returns:
        0 if everything was embedded, 1 if only a part could be, 2 after an error of the user or of the system.
    """
    parser = make_parser("embed", _DESCRIPTION, _EXAMPLE, "split of the dataset (default: all splits)")
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="folder of a model, or of the fine-tuning run that made it")
    add(
        "--input",
        type=dataset_location,
        required=True,
        metavar="INPUT",
        help="folder or URL of a dataset, or folder of WFDB recordings (.hea) at any depth",
    )
    add("--output", type=Path, required=True, metavar="OUT.npz", help="output file")
    add("--overwrite", action="store_true", help="replace the output file if it exists")
    add("--leads", metavar="L", help="leads to use: 12, 6, 3, 2, 1 or names such as I,II; others are set to zero")
    options = parser.parse_args(arguments)
    return run_script("embed", partial(_run, options), options.output)


def _run(options: argparse.Namespace) -> int:
    check_output(options.output, EMBEDDING_SUFFIXES, overwrite=options.overwrite)
    leads = None if options.leads is None else parse_leads(options.leads)
    embedder = Embedder(load(options.model), leads, select_device(options.device), options.precision)
    summary, status = apply_to_input("embed", partial(embed_input, embedder), options)
    sys.stdout.write(
        f"{options.output}: {count(summary.num_crops, 'crop')}, {count(summary.num_segments, 'complete segment')}\n"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
