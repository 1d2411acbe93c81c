from pathlib import Path

import pytest

from data_tools.remote import pieces


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test, and pieces so small that shards have several."""
    monkeypatch.setenv("ECG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ECG_RETRY_SECONDS", "5")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 256 << 10)
    return tmp_path / "cache"
