"""The page about a dataset."""

import json
from collections.abc import Iterator

from pydantic import ValidationError

from data_tools.pages.page import Details, Figures, Section, Table, Text, render
from data_tools.quality.limits import QualityLimits
from data_tools.quality.table import QUALITY_SCHEMA
from data_tools.report.contents import contents_section, distributions_section, labels_section
from data_tools.report.quality import quality_section, read_verdicts
from data_tools.report.rejected import rejected_section
from data_tools.report.sample import read_sample
from data_tools.shards.dataset import Dataset
from data_tools.shards.info import read_contents
from data_tools.shards.manifest import MANIFEST_FILE, QUALITY_FILE, SAMPLES_FILE, DatasetError
from data_tools.shards.tables import open_samples, read_schema
from data_tools.splits.description import describe_plans
from data_tools.validation import describe_validation_error


def make_report(dataset: Dataset, title: str | None = None, num_examples: int = 2) -> str:
    """Returns a page about a dataset as HTML.

    Args:
        dataset: the dataset.
        title: the page's title; None for the dataset's location.
        num_examples: number of used crops to draw, and of rejected crops of each category.

    Raises:
        DatasetError: the dataset cannot be read.
        OSError: a scratch file cannot be written.
    """
    return render(title or f"Dataset {dataset.location}", list(_sections(dataset, num_examples)))


def check_quality(dataset: Dataset) -> QualityLimits | None:
    """Checks the columns of quality.parquet; returns the quality limits of the build, None if it had none.

    Raises:
        DatasetError: the columns are unexpected, or the limits in the manifest are invalid.
    """
    if QUALITY_FILE not in dataset.manifest.tables:
        return None
    if not read_schema(dataset.path / QUALITY_FILE).equals(QUALITY_SCHEMA):
        raise DatasetError(f"{dataset.location}: {QUALITY_FILE}: unexpected columns; run `ecg-data verify`")
    try:
        return QualityLimits.model_validate(dataset.manifest.build.options.get("quality", {}))
    except ValidationError as error:
        reason = describe_validation_error(error, "build.options.quality")
        raise DatasetError(f"{dataset.location}: {MANIFEST_FILE}: {reason}; build the dataset again") from None


def _sections(dataset: Dataset, num_examples: int) -> Iterator[Section]:
    num_crops = dataset.num_crops
    num_recordings = sum(counts.recordings for counts in dataset.manifest.counts.values())
    limits = check_quality(dataset)
    with open_samples(dataset.path / SAMPLES_FILE, num_crops) as samples:
        contents = read_contents(samples)
        sample = read_sample(dataset, samples, num_examples)
        yield contents_section(dataset, contents)
        yield distributions_section(samples, sample.draw_heart_rates())
    yield labels_section(contents.labels, num_recordings)
    if limits is None:
        yield quality_section(sample.measures, QualityLimits(), None, contents.describe_flat())
    else:
        measures, verdicts = read_verdicts(dataset, limits)
        yield quality_section(measures, limits, verdicts, contents.describe_flat())
    yield rejected_section(dataset, num_examples, has_quality=limits is not None)
    if sample.examples:
        yield Section("Examples", [Figures("Crops of this dataset.", sample.examples, is_wide=True)])
    yield _provenance(dataset)


def _provenance(dataset: Dataset) -> Section:
    manifest = dataset.manifest
    size = sum(shard.size for shard in manifest.shards)
    facts = [
        ("location", dataset.location),
        ("shards", f"{len(manifest.shards):,} in {manifest.encoding}, {size / 1e9:,.3f} GB"),
        ("source", manifest.build.source),
        ("built by", f"ecg-engine {manifest.build.tool_version}"),
        ("fingerprint", dataset.fingerprint),
        ("content fingerprint (regardless of format)", dataset.content_fingerprint()),
    ]
    blocks = [Table("How it was built", ("", ""), facts)]
    options = json.dumps(manifest.build.options, indent=1, ensure_ascii=False)
    plans = "\n".join(describe_plans(dataset)).strip()
    shown = Details("Plans of ecg-data split", plans) if plans else Text("No plans were made with ecg-data split.")
    return Section("Provenance", [*blocks, Details("Options of the build", options), shown])
