"""Evaluates models on a split of a dataset.

    python engine/evaluate.py MODEL_OR_RUN [MODEL ...] --data DATASET [--plan NAME] [--split NAME] [--leads 12,6,3,2,1]

Scores per recording and per segment with confidence intervals, for fine-tuned models, for probes of frozen encoders compared
with random ones, and for the identification of patients.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.command_line import dataset_location, run_script
from data_tools.labels import Labeler
from data_tools.shards.dataset import Dataset
from engine.device import select_device
from engine.evaluation.probe import PROBES
from engine.evaluation.thresholds import DEFAULT_THRESHOLD
from engine.inference import Embedder, Predictor, Runner
from engine.inference.command_line import explain_errors, make_parser, make_runner, parse_leads
from engine.inference.evaluation import RANDOM_SUFFIX, Evaluation
from engine.inference.identification import identify
from engine.inference.label_source import align_outputs, check_labels, choose_labeler
from engine.inference.run import check_output
from engine.inference.scoring import LEVELS, Predictions, predict, probe
from engine.inference.segments import SegmentSet, open_segments
from engine.models import PretrainedModel, load
from engine.models.model_folder import check_new_folder
from engine.models.pretrained import with_random_weights
from engine.options import UserError

_DESCRIPTION = """Evaluates models on a split of a dataset: per recording (predictions of its segments averaged) and per
segment, for each combination of leads, with 95% intervals by bootstrap over patients.

Fine-tuned models are scored as they are. --probe scores any encoder by a probe on its embeddings: fitted to the training
split, its penalty or number of neighbors chosen on the validation split. For a probe, and for a model whose
encoder was frozen in fine-tuning, the same probe of an encoder with random weights is reported as a baseline. --identify
compares segments of patients to identify (--probe-split) with those of known patients (--gallery-split). Several
models are compared with the first one by paired bootstrap, or averaged (--seeds)."""

_EXAMPLE = "python engine/evaluate.py runs/diagnosis --data datasets/physionet2021 --plan diagnosis --leads 12,6,3,2,1"

# Embeddings of larger splits are not written with the predictions: they would not fit in memory.
_MAX_EMBEDDINGS = 20_000


@dataclass(frozen=True)
class _Session:
    """The state shared by all evaluations of one command."""

    options: argparse.Namespace
    dataset: Dataset
    models: list[tuple[str, PretrainedModel]]
    runner: Runner
    apply: dict[str, Any]

    def runs(self) -> Iterator[tuple[tuple[str, int], PretrainedModel, list[str] | None]]:
        """Yields name and number of each model, the model, and leads to use (``None``: its own)."""
        for number, (name, model) in enumerate(self.models):
            for leads in self.options.leads or [None]:
                yield (name, number), model, leads

    def warnings(self, segments: SegmentSet) -> Iterator[str]:
        """Yields warnings for models that were trained on crops they are tested on."""
        for name, model in self.models:
            for overlap in segments.describe_overlaps(model.config):
                yield f"{name} {overlap} of {segments.description}, so its scores may be too high"

    def open(self, split: str, labeler: Labeler | None = None) -> SegmentSet:
        """Opens a split."""
        return open_segments(self.dataset, split, self.plan, labeler)

    @property
    def plan(self) -> str | None:
        """Name of the plan; ``None``: the stored splits."""
        plan: str | None = self.options.plan
        return plan or ("identification" if self.options.identify else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script; returns the exit status, 0, or 2 after an error of the user or of the system."""
    options = _make_parser().parse_args(arguments)
    return run_script("evaluate", partial(_run, options), options.output or options.json or options.data)


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser("evaluate", _DESCRIPTION, _EXAMPLE, "split to evaluate on (default: test; without --plan, valid)")
    add = parser.add_argument
    add("models", type=Path, nargs="+", metavar="MODEL", help="folder of a model, or of the fine-tuning run that made it")
    add("--data", type=dataset_location, required=True, metavar="DATASET", help="folder or URL of the dataset")
    add("--train-split", metavar="NAME", help="split that probes are fitted to (default: train; without --plan, pretrain)")
    add("--valid-split", default="valid", metavar="NAME", help="split on which the best probe is chosen (default: valid)")
    add("--labels", metavar="SCHEME", help="cinc2021, ptbxl_all, ..., or table (default: the model's own)")
    add("--label-table", type=Path, metavar="FILE", help="ptbxl_database.csv, or a table of labels")
    add("--label-kind", default="multilabel", metavar="KIND", help="with --labels table: multilabel, multiclass, ...")
    add("--label-columns", default="", metavar="A,B", help="with --labels table: its label columns")
    add("--leads", type=_combinations, metavar="L", help="12,6,3,2,1, or names such as I,II (default: the model's)")
    add("--probe", choices=sorted(PROBES), help="score a probe of the embeddings: a linear model or nearest neighbors")
    add("--identify", action="store_true", help="identify patients by their embeddings")
    add("--gallery-split", default="gallery", metavar="NAME", help="split of known patients (default: gallery)")
    add("--probe-split", default="probe", metavar="NAME", help="split of patients to identify (default: probe)")
    add("--bootstrap", type=int, default=1000, metavar="N", help="resamples for intervals (default: 1000; 0: none)")
    add("--seeds", action="store_true", help="the models differ only in their seed: report their mean scores")
    add("--json", type=Path, metavar="FILE", help="write the results to a file")
    add("-o", "--output", type=Path, metavar="FOLDER", help="write results and predictions to a new folder")
    return parser


def _combinations(text: str) -> list[list[str]]:
    """Parses numbers of leads, each a combination, or the names of one combination."""
    parts = text.split(",")
    are_numbers = all(part.strip().isdecimal() for part in parts)
    try:
        return [parse_leads(part) for part in (parts if are_numbers else [text])]
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(options: argparse.Namespace) -> int:
    if options.output is not None:
        check_new_folder(options.output)
    if options.json is not None:
        check_output(options.json, (".json",))
    if options.bootstrap < 0:
        raise UserError(f"--bootstrap must be 0 or more, got {options.bootstrap}")
    if options.identify and (options.probe or options.labels or options.label_table or options.split):
        raise UserError("--identify uses no labels and has its own splits: drop --probe, --labels, --label-table and --split")
    if options.seeds and len(options.models) < 2:
        raise UserError("--seeds needs two or more models, one for each seed")
    session = _Session(
        options,
        Dataset.open(options.data),
        [(str(path), load(path)) for path in options.models],
        make_runner("evaluate", options),
        {"device": select_device(options.device), "precision": options.precision},
    )
    evaluate: Callable[[_Session], Evaluation] = _identify if options.identify else _score_labels
    evaluation = explain_errors(partial(evaluate, session), options.data)
    for line in evaluation.lines(shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        sys.stdout.write(f"{line}\n")
    evaluation.write(options.output, options.json)
    return 0


def _start(session: _Session, kind: str, **description: Any) -> Evaluation:
    options = session.options
    common = {
        "format": "ecg-engine-evaluation",
        "format_version": 1,
        "dataset": session.dataset.location,
        "dataset_fingerprint": session.dataset.fingerprint,
        "plan": session.plan,
    }
    return Evaluation(kind, common | description, options.bootstrap, are_seeds=options.seeds)


def _identify(session: _Session) -> Evaluation:
    gallery, probes = (session.open(name) for name in (session.options.gallery_split, session.options.probe_split))
    evaluation = _start(session, "identification", gallery_split=gallery.name, probe_split=probes.name)
    evaluation.notes += session.warnings(probes)
    for (name, number), model, leads in session.runs():
        for suffix, encoder in (("", model), (RANDOM_SUFFIX, with_random_weights(model.config, number))):
            embedder = Embedder(encoder, leads, **session.apply)
            found = identify(embedder, gallery, probes, session.runner)
            names = (name, f"embedding{suffix}", number, embedder.leads)
            levels = {"segment": (found.metrics, found.probes.patient)}
            evaluation.add(names, levels, found.facts(), found.arrays())
    return evaluation


def _score_labels(session: _Session) -> Evaluation:
    options = session.options
    for name, model in session.models:
        if model.head is None and options.probe is None:
            raise UserError(f"{name}: a model of kind '{model.config.kind}' makes no predictions: add --probe, or fine-tune it")
    own = session.models[0][1].config
    definition = own.definition if own.kind == "classifier" else None
    columns = tuple(filter(None, options.label_columns.split(",")))
    labeler = choose_labeler(options.labels, options.label_table, options.label_kind, columns, definition)
    labels = labeler.definition
    test = session.open(options.split or ("valid" if options.plan is None else "test"), labeler)
    kind = "multilabel" if labels.kind == "binary" else labels.kind
    evaluation = _start(session, kind, split=test.name, label_definition=labels.to_json())
    evaluation.notes += [*check_labels(labeler, session.dataset), *session.warnings(test)]
    methods = {number: _methods(options, name, model, evaluation) for number, (name, model) in enumerate(session.models)}
    splits = {"test": test}
    if any(method != "model" for own_methods in methods.values() for method in own_methods):
        train_split = options.train_split or ("pretrain" if options.plan is None else "train")
        splits |= {"train": session.open(train_split, labeler), "valid": session.open(options.valid_split, labeler)}
        if splits["valid"].name == test.name:
            evaluation.notes.append(
                f"probes were chosen on {test.description}, on which they are also scored: use a --plan with three splits "
                "instead"
            )
    for (name, number), model, leads in session.runs():
        for method in methods[number]:
            if method == "model":
                predictor = Predictor(model, leads, with_embedding=_keeps_embeddings(session, test), **session.apply)
                places = align_outputs(model.config, labels)
                predictions = predict(predictor, test, labels, places, session.runner)
                _add(evaluation, (name, method, number, predictor.leads), predictions)
                continue
            for suffix, encoder in (("", model), (RANDOM_SUFFIX, with_random_weights(model.config, number))):
                embedder = Embedder(encoder, leads, **session.apply)
                predictions = probe(embedder, method, splits, labels, session.runner)
                _add(evaluation, (name, f"{method} probe{suffix}", number, embedder.leads), predictions)
    return evaluation


def _methods(options: argparse.Namespace, name: str, model: PretrainedModel, evaluation: Evaluation) -> list[str]:
    """Returns the methods that a model is scored by: "model", or names of probes."""
    if options.probe is not None:
        return [options.probe]
    if model.config.label_definition is None:
        evaluation.notes.append(
            f"{name} has no label definition: its outputs are assumed to be in the order of the labels, with "
            f"threshold {DEFAULT_THRESHOLD}"
        )
    if model.config.provenance.get("mode") != "head":  # other modes change the encoder
        return ["model"]
    evaluation.notes.append(f"{name}: its encoder was frozen, so linear probes of it and of a random encoder are added")
    return ["model", "linear"]


def _keeps_embeddings(session: _Session, segments: SegmentSet) -> bool:
    return session.options.output is not None and len(segments) <= _MAX_EMBEDDINGS


def _add(evaluation: Evaluation, names: tuple[str, str, int, tuple[str, ...]], predictions: Predictions) -> None:
    segments = predictions.segments
    levels = {level: predictions.metrics(level) for level in LEVELS}
    undefined = getattr(levels["recording"][0], "undefined", ())
    note = f"left out of the means: classes without positives or without negatives in {segments.description}: "
    note += ", ".join(undefined)
    if undefined and note not in evaluation.notes:
        evaluation.notes.append(note)
    arrays = {
        "key": segments.keys(),
        "segment": segments.half,
        "recording": segments.recording,
        "patient": segments.patient,
        "target": np.asarray(segments.targets),
        "predicted": predictions.predicted,
        "threshold": np.array(predictions.definition.thresholds or ()),
    }
    if predictions.embedding is not None and len(segments) <= _MAX_EMBEDDINGS:
        arrays["embedding"] = predictions.embedding.astype(np.float16)
    evaluation.add(names, levels, {}, arrays)


if __name__ == "__main__":
    sys.exit(main())
