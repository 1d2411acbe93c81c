"""Fixtures for all tests."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from s3_server import is_installed, make_bucket, run_s3_server

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.synthetic import write_cohort

# The duration of an example says nothing about the code on a shared machine.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the long and the cluster tests as slow too, so that ``-m "not slow"`` leaves them out."""
    for item in items:
        if item.get_closest_marker("cluster") or item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Makes Ctrl-C raise KeyboardInterrupt, even if the tests run in the background of a shell, which ignores it."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real recordings and golden vectors; tests that use it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the shared reference data is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def s3(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real S3 server on loopback, which has a bucket named "bucket"."""
    if not is_installed():
        pytest.skip("OpenStack Swift is not installed: pip install swift")
    with run_s3_server(shared / "s3" / "start_s3.sh", tmp_path_factory.mktemp("s3")) as url:
        make_bucket(url, "bucket")
        yield url


@pytest.fixture(scope="session")
def simulated_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a dataset of a simulated cohort, built as a user would; tests must not change it."""
    return _build(tmp_path_factory.mktemp("simulated"), num_patients=40, seed=1)


@pytest.fixture(scope="session")
def other_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a dataset of other simulated patients."""
    return _build(tmp_path_factory.mktemp("other"), num_patients=12, seed=2)


@pytest.fixture(scope="session")
def recordings_dataset(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Returns a dataset of real recordings if there are any, otherwise the simulated one."""
    if not SHARED.is_dir():
        dataset: Path = request.getfixturevalue("simulated_dataset")
        return dataset
    out = tmp_path_factory.mktemp("real") / "dataset"
    options = BuildOptions("physionet2021", (SHARED / "ecg" / "physionet2021",), crops_per_shard=10, valid_fraction=0.1)
    build_dataset(options, out, num_workers=1)
    return out


def _build(folder: Path, num_patients: int, seed: int) -> Path:
    write_cohort(folder / "wfdb", num_patients, seed)
    build_dataset(BuildOptions("physionet2021", (folder / "wfdb",), crops_per_shard=50), folder / "dataset", num_workers=1)
    return folder / "dataset"
