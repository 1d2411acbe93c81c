"""A simulated cohort with the plans of the paper."""

from pathlib import Path

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.splits.plans import PaperPlan, RandomPlan
from data_tools.splits.writing import split_dataset
from data_tools.synthetic import write_cohort


def build_paper_cohort(folder: Path, num_patients: int) -> Path:
    """Builds a dataset in which some recordings seem to come from PTB-XL and the others from Georgia.

    It has the plans of the paper and a random one.
    """
    write_cohort(folder / "wfdb", num_patients, seed=3)
    training = folder / "wfdb" / "training"
    (training / "ptb-xl").mkdir()
    for file in (training / "simulated").rglob("P000[01]*"):
        file.rename(training / "ptb-xl" / file.name)
    (training / "simulated").rename(training / "georgia")
    build_dataset(BuildOptions("physionet2021", (folder / "wfdb",)), folder / "set", num_workers=1)
    split_dataset(folder / "set", PaperPlan())
    split_dataset(folder / "set", RandomPlan(fractions=(0.4, 0.3, 0.3)))
    return folder / "set"
