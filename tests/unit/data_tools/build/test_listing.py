import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.build.listing import Listing
from data_tools.sources.protocol import RecordingFile


def recording(name: str, location: str = "/x", source: str = "georgia") -> RecordingFile:
    return RecordingFile(location, source, name, 120_024)


@settings(max_examples=30)
@given(names=st.lists(st.sampled_from("ABCDE"), max_size=12), limit=st.none() | st.integers(1, 12))
def test_the_first_of_each_name_is_used(tmp_path_factory: pytest.TempPathFactory, names: list[str], limit: int | None) -> None:
    files = [recording(name, f"/x/{number}/{name}") for number, name in enumerate(names)]
    listing = Listing(tmp_path_factory.mktemp("listing") / "listing.sqlite", files, limit)
    kept = files[:limit]
    assert len(listing) == len(kept)
    assert list(listing) == kept
    assert [listing[number] for number in range(len(kept))] == kept
    first = {name: names.index(name) for name in names[:limit]}
    assert list(listing.distinct()) == [(number, kept[number]) for number in sorted(first.values())]
    assert list(listing.repeats()) == [
        (number, first[name]) for number, name in enumerate(names[:limit]) if number != first[name]
    ]
    listing.close()


def test_equal_names_in_two_corpora_are_two_recordings(tmp_path: Path) -> None:
    listing = Listing(tmp_path / "listing.sqlite", [recording("A"), recording("A", source="ningbo")])
    assert len(list(listing.distinct())) == 2
    listing.close()


def test_a_path_that_is_no_unicode_comes_back(tmp_path: Path) -> None:
    odd = recording("A", b"/x/\xff\xfe".decode(errors="surrogateescape"))
    listing = Listing(tmp_path / "listing.sqlite", [odd])
    assert listing[0] == odd
    listing.close()


def test_a_disk_that_fills_up_later_is_a_system_error(tmp_path: Path) -> None:
    listing = Listing(tmp_path / "listing.sqlite", [recording(f"A{number}") for number in range(1000)])
    listing._database.execute("PRAGMA max_page_count = 1")  # raised to the present size
    with pytest.raises(OSError, match="No space left on device"):
        listing.is_new("/x")
    listing.close()


def test_an_old_listing_is_written_anew(tmp_path: Path) -> None:
    Listing(tmp_path / "listing.sqlite", [recording("A")]).close()
    listing = Listing(tmp_path / "listing.sqlite", [recording("B")])
    assert [file.name for file in listing] == ["B"]
    listing.close()


def test_no_more_recordings_are_looked_for_than_are_wanted(tmp_path: Path) -> None:
    def endless() -> Iterator[RecordingFile]:
        yield from (recording(f"R{number}") for number in count())

    listing = Listing(tmp_path / "listing.sqlite", endless(), limit=3)
    assert len(listing) == 3
    listing.close()


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def connect_small(path: Path) -> sqlite3.Connection:
        database = connect(path)
        database.execute("PRAGMA max_page_count = 8")
        return database

    monkeypatch.setattr(sqlite3, "connect", connect_small)
    with pytest.raises(OSError, match=r"No space left on device: .*listing\.sqlite"):
        Listing(tmp_path / "listing.sqlite", (recording(f"R{number}") for number in range(10_000)))


def test_a_file_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"unable to open database file: .*gone/listing\.sqlite"):
        Listing(tmp_path / "gone" / "listing.sqlite", [recording("A")])
