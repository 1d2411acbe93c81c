"""The neutral benchmark: any encoders on four public datasets, fine-tuned, with a trained head and with a linear probe.

The tables also show the published AUROC of ECG-FM, fine-tuned and with a linear probe, from ecg-fm-benchmarking (arXiv
2509.25095).
"""

import argparse
import csv
import io
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from _common import environment, write_json
from _paper_jobs import Job, train
from _paper_pool import find_devices, run_all
from _paper_report import half_interval

from data_tools.files import write_text
from data_tools.labels import LabelDefinition
from data_tools.labels.codes import CodeLabeler
from data_tools.labels.definition import LABEL_COLUMNS
from data_tools.shards.dataset import Dataset
from engine.config import FinetuneConfig, load_config
from engine.config.finetune import LabelOptions
from engine.device import select_device
from engine.evaluation import evaluate
from engine.inference import Embedder, Predictor, Runner
from engine.inference.label_source import align_outputs
from engine.inference.scoring import Predictions, predict, probe
from engine.inference.segments import open_segments
from engine.interop.initial_model import resolve_initial_model
from engine.models import load
from engine.options import UserError
from engine.tasks import LabelTask
from engine.tasks.label_reading import make_labeler
from engine.training.distributed import Ranks

MODES: Final = ("full", "head", "linear")
# The nine classes of CPSC2018 and their SNOMED CT codes in PhysioNet 2021's copy.
_CPSC2018: Final = LabelDefinition(
    name="cpsc2018",
    kind="multilabel",
    classes=("SNR", "AF", "IAVB", "LBBB", "RBBB", "PAC", "PVC", "STD", "STE"),
    codes=(
        ("426783006",), ("164889003",), ("270492004",), ("164909002",), ("59118001",), ("284470004", "63593006"),
        ("164884008", "427172004", "17338001"), ("429622005",), ("164931005",),
    ),
)  # fmt: skip


class _Published(NamedTuple):
    """Label scheme, and the published AUROC of ECG-FM: fine-tuned, and with a linear probe."""

    scheme: str
    full: float
    linear: float


BENCHMARKS: Final = {
    "ptbxl_super": _Published("ptbxl_superdiagnostic", 0.916, 0.873),
    "ptbxl_all": _Published("ptbxl_all", 0.927, 0.841),
    "cpsc2018": _Published("table", 0.972, 0.906),
    "georgia": _Published("cinc2021", 0.912, 0.847),
}


@dataclass(frozen=True)
class Benchmark:
    """A dataset with labels and three splits.

    Attributes:
        name: one of BENCHMARKS.
        dataset: the dataset.
        plan: name of a plan of the dataset with splits train, valid and test.
        table: ptbxl_database.csv, or the table of labels that :func:`_write_labels` makes.
    """

    name: str
    dataset: Path
    plan: str
    table: Path | None = None

    def overrides(self) -> list[str]:
        """Returns the label options of a fine-tuning."""
        scheme = BENCHMARKS[self.name].scheme
        table = [] if self.table is None else [f"task.table={self.table}"]
        columns = [f"task.columns=[{','.join(_CPSC2018.classes)}]"] if scheme == "table" else []
        return [f"task.scheme={scheme}", *table, *columns]


@dataclass(frozen=True)
class ProtocolJob(Job):
    """Trains and tests one model on one benchmark in one mode.

    Attributes:
        output: folder of all jobs.
        model: folder of the model.
        label: what the tables call the model.
        benchmark: the benchmark.
        mode: one of MODES.
        seed: seed of the training.
        finetune: configuration overrides for the modes full and head.
    """

    output: Path
    model: Path
    label: str
    benchmark: Benchmark
    mode: str
    seed: int
    finetune: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """See :class:`Job`."""
        return self.output / "protocol" / f"{self.label}-{self.benchmark.name}-{self.mode}-seed{self.seed}"

    def config(self) -> FinetuneConfig:
        """Returns the configuration of the fine-tuning; for a linear probe, only its label options matter."""
        preset = Path(__file__).parent.parent / "configs" / "finetune" / "diagnosis.yaml"
        mode = "head" if self.mode == "linear" else self.mode
        overrides = [
            f"mode={mode}",
            f"seed={self.seed}",
            f"data.path={self.benchmark.dataset}",
            f"data.plan={self.benchmark.plan}",
        ]
        overrides += [f"output_dir={self.folder / 'run'}", f"init_from={self.model}", *self.benchmark.overrides()]
        return load_config(FinetuneConfig, [preset], [*self.finetune, *overrides])

    def make(self, ranks: Ranks) -> dict[str, Any]:
        """See :class:`Job`."""
        config = self.config()
        options: Any = config.task
        labeler = make_labeler(LabelOptions.model_validate(options.model_dump(exclude={"name"})))
        dataset, labels = Dataset.open(self.benchmark.dataset), labeler.definition
        names = ("test",) if self.mode != "linear" else ("train", "valid", "test")
        splits = {name: open_segments(dataset, name, self.benchmark.plan, labeler) for name in names}
        runner = Runner(batch_size=64, num_threads=2, report=print)
        num_steps = 0
        if self.mode == "linear":
            predictions = probe(Embedder(load(self.model), None, ranks.device), "linear", splits, labels, runner)
        else:
            source, _ = resolve_initial_model(self.model, config.output_dir)
            num_steps = train(config.model_copy(update={"init_from": str(source)}), LabelTask, ranks)
            predictor = Predictor(load(config.output_dir / "model"), None, ranks.device)
            places = align_outputs(load(config.output_dir / "model").config, labels)
            predictions = predict(predictor, splits["test"], labels, places, runner)
        return {"kind": self.mode, "steps": num_steps, **_score(predictions)}


def _score(predictions: Predictions) -> dict[str, Any]:
    metrics, patients = predictions.metrics("recording")
    overall = {name: float(value) for name, value in evaluate(metrics).overall.items()}
    return {"score": overall["auroc_macro"], "metrics": overall, "num_test": len(patients)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the protocol."""
    parser.add_argument(
        "--protocol", type=Path, nargs="+", metavar="MODEL", help="compare these models instead, all fine-tuned in the same way"
    )
    parser.add_argument(
        "--benchmark",
        action="append",
        default=[],
        nargs="+",
        metavar=("NAME DATASET PLAN", "TABLE"),
        help=f"for --protocol: name ({', '.join(BENCHMARKS)}), dataset and plan; for PTB-XL also ptbxl_database.csv",
    )


def run_protocol(options: argparse.Namespace) -> int:
    """Runs the neutral benchmark, and writes its table; returns the exit status, 1 if a job failed.

    Raises:
        UserError: the options do not fit together.
    """
    output: Path = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    benchmarks = [parse_benchmark(words, output) for words in options.benchmark]
    if not benchmarks:
        raise UserError(f"--protocol needs --benchmark NAME DATASET PLAN [TABLE]; known names: {', '.join(BENCHMARKS)}")
    labels = [path.resolve().name for path in options.protocol]
    if len(set(labels)) < len(labels):
        raise UserError("--protocol: two models have the same folder name: rename one")
    select_device(options.device)
    for path in options.protocol:
        if not path.exists():
            raise UserError(f"--protocol: {path}: no such model: choose the folder of a model or of a run, or a .pt file")
    jobs = [
        ProtocolJob(output, path.resolve(), label, benchmark, mode, seed, tuple(options.finetune))
        for seed in range(1, (options.seeds or 1) + 1)
        for path, label in zip(options.protocol, labels, strict=True)
        for benchmark in benchmarks
        for mode in MODES
        if mode != "linear" or seed == 1  # nothing in a linear probe is random
    ]
    print(f"{sum(job.result() is None for job in jobs)} of {len(jobs)} runs to do", flush=True)
    tally = run_all(jobs, find_devices(options.device, options.workers, is_tiny=False), lambda line: print(line, flush=True))
    text = to_markdown(jobs)
    write_text(output / "protocol.md", text)
    print(f"\n{text}\nwritten to {options.output / 'protocol.md'}")
    if options.json:
        write_json(options.json, "protocol", {"finetune": options.finetune}, environment(), {"runs": _to_json(jobs)})
    return tally.conclude()


def parse_benchmark(words: list[str], output: Path) -> Benchmark:
    """Returns the benchmark of ``--benchmark NAME DATASET PLAN [TABLE]``; writes the table of labels of CPSC2018 to ``output``.

    Raises:
        UserError: an unknown name, or too few or too many words.
        DatasetError: the dataset cannot be read.
    """
    name = words[0]
    if name not in BENCHMARKS:
        raise UserError(f"--benchmark: unknown name '{name}'; known: {', '.join(BENCHMARKS)}")
    needs_table = name.startswith("ptbxl_")
    if len(words) != 3 + needs_table:
        raise UserError(
            f"--benchmark {name} needs DATASET PLAN{' and ptbxl_database.csv' * needs_table}, "
            f"got {' '.join(words[1:]) or 'nothing'}"
        )
    dataset = Path(words[1]).resolve()
    table = Path(words[3]).resolve() if needs_table else None
    if BENCHMARKS[name].scheme == "table":
        table = output / f"{name}.csv"
        _write_labels(Dataset.open(dataset), _CPSC2018, table)
    return Benchmark(name, dataset, words[2], table)


def _write_labels(dataset: Dataset, definition: LabelDefinition, path: Path) -> None:
    """Writes a table of labels, from the codes in the dataset."""
    samples = pa.concat_tables([part for split in dataset.splits for part in dataset.iterate_samples(split, LABEL_COLUMNS)])
    labels = CodeLabeler(definition).label(samples)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["key", *definition.classes])
    for key, values, is_labeled in zip(samples["key"].to_pylist(), labels.values, labels.is_labeled, strict=True):
        writer.writerow([key, *(int(value) if is_labeled else "" for value in values)])
    write_text(path, text.getvalue())


def to_markdown(jobs: list[ProtocolJob]) -> str:
    """Returns a table of macro AUROC per recording; the first rows are the published values of ECG-FM."""
    names = list(dict.fromkeys(job.benchmark.name for job in jobs))
    rows = [["model", "mode", *names], ["---", "---", *["---:"] * len(names)]]
    for mode in ("full", "linear"):
        rows += [["ECG-FM, published", mode, *(f"{getattr(BENCHMARKS[name], mode):.3f}" for name in names)]]
    scores: dict[tuple[str, str], dict[str, list[float]]] = {}
    for job in jobs:
        result = job.result()
        by_benchmark = scores.setdefault((job.label, job.mode), {name: [] for name in names})
        if result is not None:
            by_benchmark[job.benchmark.name].append(result["score"])
    rows += [[*setting, *(_cell(by_benchmark[name]) for name in names)] for setting, by_benchmark in scores.items()]
    title = "Macro AUROC on the test split, predictions averaged per recording"
    return "\n".join([title, "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    interval = f" ± {half_interval(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{interval}"


def _to_json(jobs: list[ProtocolJob]) -> list[dict[str, Any]]:
    fields = ("label", "mode", "seed")
    return [
        {name: getattr(job, name) for name in fields} | {"benchmark": job.benchmark.name} | (job.result() or {}) for job in jobs
    ]
