"""Files of devices: MUSE, DICOM and EDF."""

import base64
import datetime as dt
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from corpora import (
    CORPORA,
    dicom_dataset,
    ecg_signal,
    muse_xml,
    save_dicom,
    write_edf,
    write_muse_xml,
)
from edfio import Edf, EdfAnnotation, EdfSignal, Patient
from pydicom.uid import DeflatedExplicitVRLittleEndian

from data_tools.leads import LEADS
from data_tools.recording import Recording, RecordingError
from data_tools.sources import make_source

SECRET = "the contents of another file"


def open_only(name: str, folder: Path) -> Recording:
    source = make_source(name, [folder])
    (file,) = source.find()
    return source.open(file)


def test_muse_leads_are_those_of_the_rhythm(tmp_path: Path) -> None:
    signal = ecg_signal(0)
    (tmp_path / "a.XML").write_text(muse_xml(signal, units_per_bit=4.88))
    recording = open_only("muse_xml", tmp_path)
    assert (recording.num_samples, recording.sampling_rate) == (5000, 500.0)
    assert (recording.patient, recording.age, recording.sex) == ("P1", 56.0, "female")
    order = [LEADS.index(lead) for lead in recording.leads]
    np.testing.assert_allclose(recording.read(0, 5000), signal[order] / 1000, atol=0.01)


BOMB = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    "prolog",
    [
        f'<!DOCTYPE RestingECG [<!ENTITY e0 "x">{BOMB}]>',
        '<!DOCTYPE RestingECG [<!ENTITY e "P1">]>',
        '<!DOCTYPE RestingECG [<!ENTITY e SYSTEM "file://{path}">]>',
        '<!DOCTYPE RestingECG [<!ENTITY % e SYSTEM "file://{path}"> %e;]>',
        '<!DOCTYPE RestingECG [<!ENTITY e SYSTEM "http://127.0.0.1:9/x">]>',
        f'<!DOCTYPE RestingECG [<!ENTITY e "{"x" * 100_000}">]>',
    ],
    ids=["billion laughs", "entity", "other file", "parameter entity", "network", "quadratic blowup"],
)
def test_xml_with_entities_is_rejected(tmp_path: Path, prolog: str) -> None:
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "in").mkdir()
    text = muse_xml(ecg_signal(0), prolog=prolog.replace("{path}", str(tmp_path / "secret.txt")), patient="&e9;&e;")
    (tmp_path / "in" / "a.xml").write_text(text)
    with pytest.raises(RecordingError, match=r"^unreadable XML: (EntitiesForbidden|ExternalReferenceForbidden): ") as caught:
        open_only("muse_xml", tmp_path / "in")
    assert SECRET not in str(caught.value)


def test_the_document_type_of_xml_is_not_read(tmp_path: Path) -> None:
    definition = tmp_path / "evil.dtd"
    definition.write_text(f'<!ENTITY e "{SECRET}">')
    (tmp_path / "in").mkdir()
    prolog = f'<!DOCTYPE RestingECG SYSTEM "file://{definition}">'
    (tmp_path / "in" / "a.xml").write_text(muse_xml(ecg_signal(0), prolog=prolog, patient="&e;"))
    with pytest.raises(RecordingError, match=r"^unreadable XML: ParseError: undefined entity") as caught:
        open_only("muse_xml", tmp_path / "in")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("RestingECG>", "Other>", "unexpected layout: the root element is 'Other'"),
        ("Rhythm", "Other", "unexpected layout: no waveform 'Rhythm'; available: Median, Other"),
        ("<SampleBase>500", "<SampleBase>many", "unexpected layout: SampleBase is 'many', not a nonzero number"),
        ("<SampleExponent>0", "<SampleExponent>999", "unusual sampling rate|unexpected layout: SampleExponent is '999'"),
        ("<LeadSampleCountTotal>5000", "<LeadSampleCountTotal>5001", "unexpected layout: I has 5000 of 5001 samples"),
        ("<LeadSampleSize>2", "<LeadSampleSize>4", "unexpected layout: the samples of I are not 2 bytes each"),
        ("UnitsPerBit>2.0<", "UnitsPerBit>0<", "unexpected layout: LeadAmplitudeUnitsPerBit is '0'"),
        ("MICROVOLTS", "POUNDS", "unknown unit: 'POUNDS'"),
        ("<WaveFormData>", "<WaveFormData>!", "unexpected layout: WaveFormData of I is not base64"),
    ],
)
def test_xml_of_another_layout_is_rejected(tmp_path: Path, old: str, new: str, reason: str) -> None:
    text = muse_xml(ecg_signal(0)).replace("<RestingECG>", "<RestingECG>")
    assert old in text
    (tmp_path / "a.xml").write_text(text.replace(old, new).replace('SYSTEM "restecg.dtd"', ""))
    with pytest.raises(RecordingError, match=reason):
        open_only("muse_xml", tmp_path)


def test_leads_of_muse_have_one_length(tmp_path: Path) -> None:
    shorter = base64.encodebytes(np.zeros(2500, "<i2").tobytes()).decode()
    text = muse_xml(ecg_signal(0))
    start = text.rindex("<WaveFormData>") + len("<WaveFormData>")
    text = text[:start] + shorter + text[text.index("</WaveFormData>", start) :]
    (tmp_path / "a.xml").write_text(text.replace("<LeadSampleCountTotal>5000</LeadSampleCountTotal>", ""))
    with pytest.raises(RecordingError, match="unexpected layout: leads of 2500 and 5000 samples"):
        open_only("muse_xml", tmp_path)


def test_dicom_has_patient_and_units(tmp_path: Path) -> None:
    signal = ecg_signal(0)
    save_dicom(tmp_path / "a.dcm", dicom_dataset(signal))
    recording = open_only("dicom", tmp_path)
    assert (recording.patient, recording.age, recording.sex) == ("D1", 56.0, "female")
    assert (recording.num_samples, recording.leads) == (5000, LEADS)
    np.testing.assert_allclose(recording.read(0, 5000), signal / 1000, atol=1e-6)
    save_dicom(tmp_path / "a.dcm", dicom_dataset(signal, units="mV"))
    np.testing.assert_allclose(open_only("dicom", tmp_path).read(0, 5000), signal, atol=1e-3)


def test_dicom_leads_may_be_told_by_their_codes(tmp_path: Path) -> None:
    dataset = dicom_dataset(ecg_signal(0)[:2], LEADS[:2])
    for channel, code in zip(dataset.WaveformSequence[1].ChannelDefinitionSequence, ("2:62", "5.6.3-9-2"), strict=True):
        source = channel.ChannelSourceSequence[0]
        source.CodeMeaning, source.CodeValue = "?", code
    save_dicom(tmp_path / "a.dcm", dataset)
    assert open_only("dicom", tmp_path).leads == ("aVR", "II")


def test_the_padding_of_dicom_is_nan(tmp_path: Path) -> None:
    dataset = dicom_dataset(ecg_signal(0))
    group = dataset.WaveformSequence[1]
    digital = np.frombuffer(group.WaveformData, "<i2").reshape(-1, 12).copy()
    digital[1000:1010, 3] = -32768
    group.WaveformData = digital.tobytes()
    group.WaveformPaddingValue = np.int16(-32768).tobytes()
    save_dicom(tmp_path / "a.dcm", dataset)
    assert np.isnan(open_only("dicom", tmp_path).read(0, 5000)).sum() == 10


def _without(name: str) -> Callable[[Any], None]:
    return lambda dataset: delattr(dataset, name)


def _change_group(name: str, value: object) -> Callable[[Any], None]:
    return lambda dataset: setattr(dataset.WaveformSequence[1], name, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without("WaveformSequence"), "no waveform: in the DICOM file"),
        (_change_group("NumberOfWaveformSamples", 999_999_999), "unreadable DICOM: ValueError: "),
        (_change_group("WaveformData", b"\0\0"), "unreadable DICOM: ValueError: "),
        (_change_group("WaveformBitsAllocated", 24), "unreadable DICOM: KeyError: "),
        (_change_group("ChannelDefinitionSequence", []), "no known lead: in 2 multiplex groups"),
        (_change_group("SamplingFrequency", 0), "unusual sampling rate: 0 Hz"),
        (_change_group("WaveformOriginality", "DERIVED"), "no known lead: in 2 multiplex groups"),
    ],
)
def test_dicom_of_another_layout_is_rejected(tmp_path: Path, change: Callable[[Any], None], reason: str) -> None:
    dataset = dicom_dataset(ecg_signal(0))
    change(dataset)
    save_dicom(tmp_path / "a.dcm", dataset)
    with pytest.raises(RecordingError, match=f"^{reason}"):
        open_only("dicom", tmp_path)


def test_deflated_dicom_is_rejected(tmp_path: Path) -> None:
    dataset = dicom_dataset(ecg_signal(0))
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    dataset.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    with pytest.raises(RecordingError, match="deflated transfer syntax"):
        open_only("dicom", tmp_path)


def edf_signal(seconds: int, rate: int, label: str, unit: str = "uV") -> EdfSignal:
    values = ecg_signal(0, seconds * rate)[0].astype(float)
    return EdfSignal(values, rate, label=label, physical_dimension=unit, physical_range=(-32768, 32767))


def test_edf_leads_are_told_by_name_unit_and_rate(tmp_path: Path) -> None:
    signals = [
        edf_signal(10, 500, "ECG I"),
        edf_signal(10, 100, "SpO2", "%"),
        edf_signal(10, 500, "EKG II", "mV"),
        edf_signal(10, 250, "V1"),
        edf_signal(10, 500, "V2", "degC"),
    ]
    patient = Patient(code="E1", sex="F", birthdate=dt.date(1970, 5, 1))
    edf = Edf(signals, patient=patient, annotations=[EdfAnnotation(1.0, None, "beat")])
    edf.startdate = dt.date(2020, 4, 1)
    edf.write(tmp_path / "a.edf")
    recording = open_only("edf", tmp_path)
    assert recording.leads == ("I", "II", "III", "aVR", "aVL", "aVF")
    assert recording.notes[:3] == (
        "unknown lead: 'SpO2'",
        "unknown unit: 'degC' of lead V2",
        "different sampling rate: lead V1 at 250 Hz",
    )
    assert (recording.patient, recording.age, recording.sex) == ("E1", 49.0, "female")
    signal = recording.read(0, 5000)
    np.testing.assert_allclose(signal[0] * 1000, signal[1], rtol=1e-5)
    np.testing.assert_array_equal(recording.read(333, 777), signal[:, 333:777])


def test_edf_with_interruptions_is_rejected(tmp_path: Path) -> None:
    Edf([edf_signal(10, 500, "I")], annotations=[EdfAnnotation(1.0, None, "x")], data_record_duration=1).write(
        tmp_path / "a.edf"
    )
    content = (tmp_path / "a.edf").read_bytes()
    assert b"+3\x14" in content
    (tmp_path / "a.edf").write_bytes(content.replace(b"+3\x14", b"+4\x14"))
    with pytest.raises(RecordingError, match="with interruptions"):
        open_only("edf", tmp_path)


def test_edf_may_leave_its_length_to_the_file(tmp_path: Path) -> None:
    write_edf(tmp_path)
    content = bytearray((tmp_path / "S1.edf").read_bytes())
    content[236:244] = b"-1      "
    for name in ("S0", "S2", "broken"):
        (tmp_path / f"{name}.edf").unlink()
    (tmp_path / "S1.edf").write_bytes(content)
    assert open_only("edf", tmp_path).num_samples == 5500


@pytest.mark.parametrize("content", [b"", b"0" * 100, b"0       " + b"x" * 500])
def test_what_is_no_edf_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.edf").write_bytes(content)
    with pytest.raises(RecordingError, match=r"^unreadable EDF: "):
        open_only("edf", tmp_path)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["muse_xml", "dicom", "edf", "code15", "numpy"])
def test_damaged_files_are_rejected_or_read(tmp_path: Path, name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    corpus = CORPORA[name](tmp_path / "in")
    for path in (tmp_path / "in").rglob("*"):
        if path.suffix in {".yaml", ".csv"}:
            continue
        content = bytearray(path.read_bytes())
        for place in random.integers(0, min(len(content), 4000), 20):
            content[place] = random.integers(256)
        path.write_bytes(content[: random.integers(len(content) // 2, len(content) + 1)])
    source = make_source(name, corpus.inputs)
    for file in source.find():
        try:
            recording = source.open(file)
            recording.read(0, min(recording.num_samples, 1000))
        except RecordingError as error:
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("hdf5", "h5py", "hdf5"),
        ("code15", "h5py", "hdf5"),
        ("muse_xml", "defusedxml", "muse"),
        ("dicom", "pydicom", "dicom"),
        ("edf", "edfio", "edf"),
    ],
)
def test_without_its_reader_a_source_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    corpus = CORPORA[name](tmp_path)
    for loaded in [*sys.modules]:
        if loaded.partition(".")[0] == module:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"^{module} is not installed; install it with pip install 'ecg-engine\[{extra}\]'$"):
        make_source(name, corpus.inputs).find()


def test_large_xml_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_muse_xml(tmp_path)
    monkeypatch.setattr("data_tools.sources.muse_xml._MAX_BYTES", 1000)
    source = make_source("muse_xml", [tmp_path])
    with pytest.raises(RecordingError, match=r"^unreadable \.xml: [0-9]+ bytes, more than 1000$"):
        source.open(next(iter(source.find())))
