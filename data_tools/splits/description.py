"""Describes the plans of a dataset as text, with the paper's counts beside those of its plans."""

from collections.abc import Iterator

from data_tools.shards.dataset import Dataset
from data_tools.shards.info import align
from data_tools.shards.manifest import SplitCounts
from data_tools.shards.plans import plans_info
from data_tools.splits.parsing import format_options
from data_tools.splits.plans import PaperPlan

_ALL = "all"

# Section 5.1 of the paper: plan, number of 5-s segments in each split, and why the numbers differ here.
_PAPER = (
    (
        "pretrain",
        {_ALL: 189_051},
        "the paper does not say whether its segments include those held out for its tests; these do not",
    ),
    (
        "diagnosis",
        {"train": 32_640, "valid": 4_079, "test": 4_079},
        (
            "the paper divides segments 8:1:1; here patients or recordings are divided, whatever their number of segments, and "
            "repeated or unusable signals are left out"
        ),
    ),
    (
        "identification",
        {"train": 147_444, "valid": 17_670},
        (
            "the paper describes them as an 8:2 division of its pre-training set, but their ratio is 89:11 and they add up to "
            "165,114; here the patients of the pre-training set are divided 8:2"
        ),
    ),
    (
        "identification",
        {"gallery": 2_127, "probe": 2_127},
        (
            "the paper may count the recordings of another version of PTB-XL; here two sessions of a patient differ in "
            "time, and repeated or unusable signals are left out"
        ),
    ),
)


def describe_plans(dataset: Dataset) -> Iterator[str]:
    """Describes the plans of a dataset: counts per split, and how and why they differ from the paper's.

    Yields:
        Lines; none for a dataset without plans.
    """
    plans = plans_info(dataset).plans
    if not plans:
        return
    of_paper = [entry for entry in _PAPER if entry[0] in plans and plans[entry[0]].kind == PaperPlan.kind]
    counts: dict[tuple[str, str], SplitCounts] = {}
    for name, plan in plans.items():
        counts |= {(name, split): split_counts for split, split_counts in plan.counts.items()}
        if any(name == entry[0] and _ALL in entry[1] for entry in of_paper):
            splits = [each.model_dump() for each in plan.counts.values()]
            counts[name, _ALL] = SplitCounts(
                **{field: sum(each[field] for each in splits) for field in SplitCounts.model_fields}
            )
    expected = {(name, split): number for name, numbers, _ in of_paper for split, number in numbers.items()}
    rows: list[list[object]] = [
        [*key, split_counts.recordings, split_counts.patients, split_counts.crops, split_counts.segments, expected.get(key, "")]
        for key, split_counts in counts.items()
    ]
    yield ""
    yield from align(["plan", "split", "recordings", "patients", "crops", "segments", "in the paper" if expected else ""], rows)
    made = {format_options(name, plan): None for name, plan in plans.items()}
    yield from (f"made by: ecg-data split {dataset.location} {options}" for options in made)
    for name, plan in plans.items():
        if plan.held_out:
            yield f"held out from pre-training: {', '.join(plan.held_out)} of {name}"
    for name, numbers, reason in of_paper:
        if any(counts[name, split].segments != number for split, number in numbers.items()):
            yield f"{name}, {', '.join(numbers)}: {reason}"
