"""The table of corpora that can be downloaded. To add one, add a line to :data:`CORPORA` and name it in docs/datasets.md."""

from typing import Literal, NamedTuple


class Corpus(NamedTuple):
    """Where a corpus is published.

    Attributes:
        publisher: "physionet": a folder with SHA256SUMS.txt; "zenodo": a record, whose description has the MD5 of each file.
        url: URL of the folder or the record.
        about_gb: approximate size of all files in GB, for publishers whose list has no sizes.
        terms: page on which the user must accept the license; None if there is nothing to accept.
    """

    publisher: Literal["physionet", "zenodo"]
    url: str
    about_gb: float
    terms: str | None = None


CORPORA: dict[str, Corpus] = {
    "physionet2021": Corpus("physionet", "https://physionet.org/files/challenge-2021/1.0.3", 12),
    "ptbxl": Corpus("physionet", "https://physionet.org/files/ptb-xl/1.0.3", 3.2),
    "mimic_iv_ecg": Corpus(
        "physionet", "https://physionet.org/files/mimic-iv-ecg/1.0", 100, "https://physionet.org/content/mimic-iv-ecg/1.0"
    ),
    "code15": Corpus("zenodo", "https://zenodo.org/api/records/4916206", 50),
}
