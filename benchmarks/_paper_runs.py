"""The jobs behind the paper's tables: pre-training encoders, and fine-tuning and testing cells."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from _paper_cells import RANDOM, Cell, Encoder
from _paper_jobs import Job, train

from data_tools.labels import CodeLabeler, cinc2021
from data_tools.leads import LEAD_COMBINATIONS
from data_tools.shards.dataset import Dataset
from engine.config import FinetuneConfig, PretrainConfig, RunConfig, load_config
from engine.evaluation import evaluate
from engine.inference import Embedder, Predictor, Runner
from engine.inference.identification import identify
from engine.inference.label_source import align_outputs
from engine.inference.scoring import LEVELS, Predictions, predict
from engine.inference.segments import open_segments
from engine.interop.initial_model import resolve_initial_model
from engine.models import ModelConfig, PretrainedModel, load, save
from engine.models.pretrained import with_random_weights
from engine.tasks import IdentificationTask, LabelTask, PretrainingTask, Task
from engine.training.distributed import Ranks

CONFIGS: Final = Path(__file__).parent.parent / "configs"
_TASKS: Final[dict[str, tuple[str, type[Task]]]] = {
    "Dx": ("diagnosis", LabelTask),
    "Id": ("identification", IdentificationTask),
}


@dataclass(frozen=True)
class Settings:
    """Settings shared by the runs of one folder.

    Attributes:
        dataset: the dataset, with the plans of `ecg-data split --plan paper`.
        output: folder of all encoders and cells.
        pretrain: configuration overrides for all pre-training runs, except options of the local objective.
        local: overrides for the options of the local objective, ``key=value`` relative to its section.
        finetune: overrides for all fine-tuning runs.
        tasks: further overrides for the fine-tuning runs of each task.
        keeps_checkpoints: whether to keep the checkpoints of finished runs.
    """

    dataset: Path
    output: Path
    pretrain: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    finetune: tuple[str, ...] = ()
    tasks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    keeps_checkpoints: bool = False

    def clean(self, config: RunConfig) -> None:
        """Removes files that are not needed after a run has finished."""
        if not self.keeps_checkpoints:
            for name in ("checkpoints", "model"):
                shutil.rmtree(config.output_dir / name, ignore_errors=True)

    def describe(self) -> dict[str, Any]:
        """Returns the settings that affect the scores, as JSON values."""
        fields = {name: value for name, value in asdict(self).items() if name not in {"dataset", "output", "keeps_checkpoints"}}
        return {"dataset": Dataset.open(self.dataset).fingerprint, **fields}


@dataclass(frozen=True)
class EncoderJob(Job):
    """Pre-trains an encoder, or draws its random weights, and writes it to the folder ``model``."""

    settings: Settings
    encoder: Encoder

    @property
    def folder(self) -> Path:
        """See :class:`Job`."""
        return self.settings.output / "encoders" / self.encoder.name

    @property
    def model(self) -> Path:
        """Folder of the model."""
        return self.folder / "model"

    def config(self) -> PretrainConfig:
        """Returns the configuration of the pre-training; for a random encoder that of W2V, whose architecture it has."""
        settings, encoder = self.settings, self.encoder
        preset = CONFIGS / "pretrain" / f"{'w2v' if encoder.preset == RANDOM else encoder.preset}.yaml"
        objective = load_config(PretrainConfig, [preset]).objective.name
        section = {"w2v": "objective", "w2v_cmsc": "objective.w2v"}.get(objective)
        local = [] if section is None else [f"{section}.{override}" for override in settings.local]
        overrides = [
            f"seed={encoder.seed}",
            f"leads={encoder.num_leads}",
            f"data.path={settings.dataset}",
            "data.plan=pretrain",
        ]
        return load_config(
            PretrainConfig, [preset], [*settings.pretrain, *local, *overrides, f"output_dir={self.folder / 'run'}"]
        )

    def make(self, ranks: Ranks) -> dict[str, Any]:
        """See :class:`Job`."""
        config = self.config()
        if self.encoder.preset == RANDOM:
            shutil.rmtree(self.model, ignore_errors=True)
            leads = LEAD_COMBINATIONS[self.encoder.num_leads]
            random = with_random_weights(ModelConfig(kind="encoder", encoder=config.model, leads=leads), self.encoder.seed)
            tensors = random.encoder.state_dict()
            save(self.model, random.config, {f"encoder.{name}": tensor for name, tensor in tensors.items()})
            return {"kind": "random", "steps": 0}
        num_steps = train(config, PretrainingTask, ranks)
        # The model that fine-tuning from this run would start from.
        converted, _ = resolve_initial_model(config.output_dir, self.folder)
        shutil.rmtree(self.model, ignore_errors=True)
        converted.rename(self.model)
        self.settings.clean(config)
        return {"kind": "encoder", "steps": num_steps}


@dataclass(frozen=True)
class CellJob(Job):
    """Fine-tunes an encoder and tests it."""

    settings: Settings
    cell: Cell

    @property
    def folder(self) -> Path:
        """See :class:`Job`."""
        return self.settings.output / "cells" / self.cell.name

    @property
    def needs(self) -> EncoderJob:
        """See :class:`Job`."""
        return EncoderJob(self.settings, self.cell.encoder)

    def config(self) -> FinetuneConfig:
        """Returns the configuration of the fine-tuning."""
        settings, cell = self.settings, self.cell
        name, _ = _TASKS[cell.task]
        run_overrides = [
            f"seed={cell.encoder.seed}",
            f"leads={cell.num_leads}",
            f"data.path={settings.dataset}",
            f"data.plan={name}",
        ]
        run_overrides += [f"output_dir={self.folder / 'run'}", f"init_from={self.needs.model}"]
        overrides = [*settings.finetune, *dict(settings.tasks).get(cell.task, ()), *run_overrides]
        return load_config(FinetuneConfig, [CONFIGS / "finetune" / f"{name}.yaml"], overrides)

    def make(self, ranks: Ranks) -> dict[str, Any]:
        """See :class:`Job`."""
        config, cell = self.config(), self.cell
        num_steps = train(config, _TASKS[cell.task][1], ranks)
        model = load(config.output_dir / "model")
        scores = score(model, self.settings.dataset, cell.task, LEAD_COMBINATIONS[cell.num_leads], ranks)
        self.settings.clean(config)
        return {"kind": cell.task, "steps": num_steps, **scores}


def score(model: PretrainedModel, path: Path, task: str, leads: Sequence[str], ranks: Ranks) -> dict[str, Any]:
    """Returns the score of a fine-tuned model on the test split, and other metrics.

    The score of Dx is the CinC score of 5-s segments with the model's thresholds, which maximize F1 on the validation split.
    The score of Id is the share of probes whose most similar segment in the gallery is from the same patient.
    """
    dataset = Dataset.open(path)
    plan = _TASKS[task][0]
    notes: list[str] = []
    runner = Runner(batch_size=64, num_threads=1, report=notes.append)
    precision: Any = "fp32"
    if task == "Id":
        gallery, probes = (open_segments(dataset, split, plan) for split in ("gallery", "probe"))
        found = identify(Embedder(model, leads, ranks.device, precision), gallery, probes, runner)
        metrics = {name: float(value) for name, value in evaluate(found.metrics).overall.items()}
        return {"score": metrics["rank_1_accuracy"], "metrics": {"segment": metrics}, "num_test": len(probes)}
    labeler = CodeLabeler(cinc2021())
    labels, test = labeler.definition, open_segments(dataset, "test", plan, labeler)
    predicted = predict(
        Predictor(model, leads, ranks.device, precision), test, labels, align_outputs(model.config, labels), runner
    )
    metrics_by_level = {level: _overall(predicted, level) for level in LEVELS}
    challenge_score = metrics_by_level["segment"]["challenge_score"]
    return {"score": challenge_score, "metrics": metrics_by_level, "num_test": len(predicted.segments)}


def _overall(predictions: Predictions, level: str) -> dict[str, float]:
    metrics, _ = predictions.metrics(level)
    return {name: float(value) for name, value in evaluate(metrics).overall.items()}
