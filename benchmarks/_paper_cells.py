"""The contents of the paper's tables: the published values, and the cells and encoders behind them.

A cell is one score of one seed: for a method, a task and a combination of leads. Several cells share an encoder, even in
different tables, so all tables in one folder need each encoder only once.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

VALUES_FILE: Final = Path(__file__).with_name("paper_tables.csv")
LEAD_COUNTS: Final = (12, 6, 3, 2, 1)
TASKS: Final = ("Dx", "Id")
RANDOM: Final = "random"
# The name of a method in the paper -> the preset in configs/pretrain; in Table 4, methods are named by their augmentations.
METHODS: Final = {
    "Random Init.": RANDOM,
    "W2V": "w2v",
    "W2V+RLM": "w2v_rlm",
    "CMSC": "cmsc",
    "CMSC+RLM": "cmsc_rlm",
    "3KG": "3kg",
    "SimCLR(RLM)": "simclr_rlm",
    "W2V+CMSC": "w2v_cmsc",
    "W2V+CMSC+RLM": "w2v_cmsc_rlm",
    "RLM": "w2v_cmsc_rlm",
    "RLM+Physio(4)": "w2v_cmsc_rlm_physio4",
    "RLM+Physio(3)": "w2v_cmsc_rlm_physio3",
    "Physio(4)": "w2v_cmsc_physio4",
    "Physio(3)": "w2v_cmsc_physio3",
}
TABLES: Final = {
    1: "A single 12-lead model, fine-tuned with padded leads",
    2: "Pre-trained and fine-tuned for each combination of leads",
    3: "Random lead masking in W2V and CMSC",
    4: "Augmentations of W2V+CMSC",
}


class PaperValue(NamedTuple):
    """A value in the paper: the mean over 3 seeds, and half the width of its 95% interval."""

    mean: float
    interval: float


class Row(NamedTuple):
    """A row of a table."""

    table: int
    method: str
    task: str


@dataclass(frozen=True, order=True)
class Encoder:
    """A pre-trained or random encoder.

    Attributes:
        preset: the preset in configs/pretrain, or RANDOM.
        num_leads: number of leads in its pre-training.
        seed: seed of its initial weights and its pre-training.
    """

    preset: str
    num_leads: int
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.preset}-{self.num_leads}-lead-seed{self.seed}"


@dataclass(frozen=True, order=True)
class Cell:
    """One score of one seed.

    Attributes:
        encoder: what is fine-tuned.
        task: one of TASKS.
        num_leads: number of leads in fine-tuning and testing; the encoder's other leads are zero (P-N-lead).
    """

    encoder: Encoder
    task: str
    num_leads: int

    @property
    def is_padded(self) -> bool:
        """Whether some leads of the encoder are zero."""
        return self.num_leads < self.encoder.num_leads

    @property
    def name(self) -> str:
        """Name of its folder."""
        encoder = self.encoder
        leads = f"{'P-' * self.is_padded}{self.num_leads}-lead"
        return f"{encoder.preset}-{self.task}-{leads}-seed{encoder.seed}"


def read_paper_values(path: Path = VALUES_FILE) -> dict[Row, dict[int, PaperValue]]:
    """Returns the paper's values by row and number of leads, in the order of the paper, without its "-" cells."""
    values: dict[Row, dict[int, PaperValue]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            row = Row(int(line["table"]), line["method"], line["task"])
            texts = {num_leads: line[str(num_leads)].split() for num_leads in LEAD_COUNTS}
            values[row] = {n: PaperValue(*map(float, text)) for n, text in texts.items() if len(text) == 2}
    return values


def table_rows(tables: Iterable[int], methods: Iterable[str] | None = None) -> list[Row]:
    """Returns the rows of some tables; of all methods, or only of those given by name or preset."""
    chosen = None if methods is None else set(methods)
    rows = [row for row in read_paper_values() if row.table in set(tables)]
    return [row for row in rows if chosen is None or row.method in chosen or METHODS[row.method] in chosen]


def row_cells(row: Row, seeds: Iterable[int]) -> Iterator[tuple[int, Cell]]:
    """Yields the number of leads and the cell for each value that the paper has in a row, for each seed.

    In Table 2 the encoder has the same leads as the cell; in the other tables it has twelve.
    """
    preset = METHODS[row.method]
    for seed in seeds:
        for num_leads in read_paper_values()[row]:
            yield num_leads, Cell(Encoder(preset, num_leads if row.table == 2 else 12, seed), row.task, num_leads)


def all_cells(rows: Iterable[Row], seeds: Iterable[int]) -> list[Cell]:
    """Returns the distinct cells of some rows, seed by seed."""
    seeds = list(seeds)
    found = [cell for seed in seeds for row in rows for _, cell in row_cells(row, [seed])]
    return list(dict.fromkeys(found))
