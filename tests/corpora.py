"""Small corpora in the layout of each source, for tests: three sound recordings and a broken one."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pydicom
from edfio import Edf, EdfSignal
from numpy.typing import NDArray
from pydicom.uid import ExplicitVRLittleEndian, TwelveLeadECGWaveformStorage, generate_uid
from recording_files import write_recording

from data_tools.leads import LEADS, derive_limb_leads

MUSE_LEADS = ("I", "II", *LEADS[6:])

Signal = NDArray[np.int16]


@dataclass(frozen=True)
class Corpus:
    """A corpus on disk.

    Attributes:
        inputs: what the source is given.
        signals: uV in the order of LEADS, by the names of the recordings.
        broken: name of the recording that cannot be used.
        reason: why, as a pattern.
        tolerance: of the signals, in mV.
    """

    inputs: list[Path]
    signals: dict[str, Signal]
    broken: str
    reason: str
    tolerance: float = 1e-6


def ecg_signal(seed: int, num_samples: int = 5000) -> Signal:
    """Returns a random walk in uV, int16 [12, samples], whose limb leads are those of I and II; zero nowhere in all leads."""
    random = np.random.default_rng(seed)
    steps = random.integers(-30, 31, (8, num_samples)).cumsum(axis=1)
    independent = (2 * np.clip(steps, -2000, 2000)).astype(np.int16)
    independent[2][independent[2] == 0] = 2
    limb = [independent[0], independent[1], *derive_limb_leads(independent[0].astype(float), independent[1].astype(float))]
    return np.stack([*limb, *independent[2:]]).astype(np.int16)


def three_signals() -> list[Signal]:
    return [ecg_signal(seed, 5000 + 100 * seed) for seed in range(3)]


def write_dat(folder: Path, name: str, signal: Signal, order: Sequence[str] = LEADS, rate: int = 500) -> Path:
    """Writes NAME.dat and NAME.hea, 1000 units per mV, with the leads in an order; returns the path without suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = signal[[LEADS.index(lead) for lead in order]]
    (folder / f"{name}.dat").write_bytes(rows.T.astype("<i2").tobytes())
    lines = [f"{name} {len(order)} {rate} {signal.shape[1]}"]
    lines += [f"{name}.dat 16 1000.0(0)/mV 16 0 0 0 0 {lead.upper()}" for lead in order]
    (folder / f"{name}.hea").write_text("\n".join(lines) + "\n")
    return folder / name


def write_physionet2021(folder: Path) -> Corpus:
    signals = three_signals()
    for number, signal in enumerate(signals):
        write_recording(folder / "georgia" / f"g{number}", f"E{number}", signal)
    write_recording(folder / "georgia" / "g1", "broken", ecg_signal(9, 100)).with_suffix(".mat").unlink()
    return Corpus([folder], {f"E{number}": signal for number, signal in enumerate(signals)}, "broken", r"^missing \.mat$")


def write_wfdb(folder: Path) -> Corpus:
    signals = {f"part/R{number}": signal for number, signal in enumerate(three_signals())}
    for name, signal in signals.items():
        write_dat(folder / "part", Path(name).name, signal)
    write_dat(folder, "broken", ecg_signal(9, 100)).with_suffix(".dat").unlink()
    return Corpus([folder], signals, "broken", r"^missing \.dat$")


def write_ptbxl(folder: Path) -> Corpus:
    signals = {f"{number:05d}_hr": signal for number, signal in enumerate(three_signals(), 1)}
    rows = ["ecg_id,patient_id,age,sex,report,scp_codes,strat_fold"]
    for number, (name, signal) in enumerate(signals.items(), 1):
        write_dat(folder / "records500" / "00000", name, signal)
        rows.append(f"""{number},{1000 + number}.0,56.0,1,"two\nlines","{{'NORM': 100.0, 'SR': 0.0}}",{number}""")
    write_dat(folder / "records500" / "00000", "00004_hr", ecg_signal(9))
    (folder / "ptbxl_database.csv").write_text("\n".join(rows) + "\n")
    return Corpus([folder], signals, "00004_hr", r"^not in the table: ptbxl_database.csv has no row for it$")


def write_mimic_iv_ecg(folder: Path) -> Corpus:
    order = [*LEADS[:4], "aVF", "aVL", *LEADS[6:]]  # as the corpus has them
    rows = ["subject_id,study_id,file_name,ecg_time,path"]
    signals = {f"4000000{number}": signal for number, signal in enumerate(three_signals())}
    for name, signal in [*signals.items(), ("40000009", ecg_signal(9))]:
        path = f"files/p1000/p1000003{name[-1]}/s{name}"
        write_dat(folder / path, name, signal, order)
        if name in signals:
            rows.append(f"1000003{name[-1]},{name},{name},2180-07-23 08:44:00,{path}/{name}")
    (folder / "record_list.csv").write_text("\n".join(rows) + "\n")
    return Corpus([folder], signals, "40000009", r"^not in the table: record_list.csv has no row for it$")


def pad_tracing(signal: Signal) -> NDArray[np.float32]:
    """Returns a tracing [4096, 12] in mV, padded with zeros at both ends."""
    padded = np.zeros((4096, 12), dtype=np.float32)
    before = (4096 - signal.shape[1]) // 2
    padded[before : before + signal.shape[1]] = (signal / 1000).T
    return padded


def write_code15(folder: Path) -> Corpus:
    folder.mkdir(exist_ok=True)
    signals = {str(700 + number): ecg_signal(number, (2934, 4000, 4096)[number]) for number in range(3)}
    tracings = np.stack([*map(pad_tracing, [*signals.values(), ecg_signal(9, 4000)]), np.zeros((4096, 12), np.float32)])
    with h5py.File(folder / "exams_part0.hdf5", "w") as file:
        file["tracings"] = tracings
        file["exam_id"] = np.array([*map(int, signals), 999, 0])
    columns = "exam_id,age,is_male,nn_predicted_age,1dAVb,RBBB,LBBB,SB,ST,AF,patient_id,death,timey,normal_ecg,trace_file"
    rows = [f"{name},64,True,43.1,False,True,False,False,False,False,{name}0,,,True,exams_part0.hdf5" for name in signals]
    (folder / "exams.csv").write_text("\n".join([columns, *reversed(rows)]) + "\n")
    return Corpus([folder], signals, "999", r"^not in the table: exams.csv has no row for it$")


def write_sami_trop(folder: Path) -> Corpus:
    folder.mkdir(exist_ok=True)
    signals = {f"exams-{number:06d}": ecg_signal(number, (2934, 4000, 4096)[number]) for number in range(3)}
    with h5py.File(folder / "exams.hdf5", "w") as file:
        file["tracings"] = np.stack([pad_tracing(signal) for signal in [*signals.values(), ecg_signal(9)[:, :4000]]])
    rows = [f"{number},70,False,True,False,2.1,68.0" for number in (500, 501, 502, "")]
    columns = "exam_id,age,is_male,normal_ecg,death,timey,nn_predicted_age"
    (folder / "exams.csv").write_text("\n".join([columns, *rows]) + "\n")
    return Corpus([folder], signals, "exams-000003", r"^no patient: exams.csv names none for it$")


LAYOUT = """
files: "{files}"
signals: {signals}
axes: [recording, lead, sample]
leads: [I, II, III, aVR, aVL, aVF, V1, V2, V3, V4, V5, V6]
sampling_rate: 500
unit: uV
gain: 2
names: ids
"""


def write_hdf5(folder: Path) -> Corpus:
    folder.mkdir(exist_ok=True)
    signals = {f"rec-{number}": ecg_signal(number) for number in range(3)}
    with h5py.File(folder / "a.h5", "w") as file:
        file["ecg/signal"] = 2 * np.stack(list(signals.values()))
        file["ids"] = list(signals)
    with h5py.File(folder / "b.h5", "w") as file:
        file["other"] = np.zeros(3)
    (folder / "layout.yaml").write_text(LAYOUT.format(files="*.h5", signals="ecg/signal"))
    reason = r"^unexpected layout: no dataset 'ecg/signal'; available: 'other'$"
    return Corpus([folder / "layout.yaml"], signals, "b", reason)


def write_numpy(folder: Path) -> Corpus:
    folder.mkdir(exist_ok=True)
    signals = {f"rec-{number}": ecg_signal(number) for number in range(3)}
    np.savez_compressed(folder / "a.npz", ecg=2 * np.stack(list(signals.values())), ids=np.array(list(signals)))
    np.savez(folder / "b.npz", ecg=np.zeros((2, 3, 4)), ids=np.array(["x", "y"]))
    (folder / "layout.yaml").write_text(LAYOUT.format(files="*.npz", signals="ecg"))
    return Corpus([folder / "layout.yaml"], signals, "b", r"^unexpected layout: 'ecg' has 3 leads instead of 12$")


def muse_xml(signal: Signal, *, units_per_bit: float = 2.0, prolog: str = "", patient: str = "P1") -> str:
    """Returns a MUSE file with a median beat and the rhythm, whose leads are I, II and V1 to V6."""
    waveforms = []
    for kind, length in (("Median", 600), ("Rhythm", signal.shape[1])):
        leads = []
        for lead in MUSE_LEADS:
            digital = np.rint(signal[LEADS.index(lead), :length] / units_per_bit).astype("<i2")
            leads.append(
                f"<LeadData><LeadSampleCountTotal>{length}</LeadSampleCountTotal>"
                f"<LeadAmplitudeUnitsPerBit>{units_per_bit}</LeadAmplitudeUnitsPerBit>"
                "<LeadAmplitudeUnits>MICROVOLTS</LeadAmplitudeUnits><LeadSampleSize>2</LeadSampleSize>"
                f"<LeadID>{lead}</LeadID><WaveFormData>\n{base64.encodebytes(digital.tobytes()).decode()}</WaveFormData></LeadData>"
            )
        waveforms.append(
            f"<Waveform><WaveformType>{kind}</WaveformType><SampleBase>500</SampleBase><SampleExponent>0</SampleExponent>"
            f"{''.join(leads)}</Waveform>"
        )
    return (
        f"""<?xml version="1.0" encoding="ISO-8859-1"?>{prolog or '<!DOCTYPE RestingECG SYSTEM "restecg.dtd">'}"""
        f"<RestingECG><PatientDemographics><PatientID>{patient}</PatientID><PatientAge>56</PatientAge><AgeUnits>YEARS</AgeUnits>"
        f"<Gender>FEMALE</Gender></PatientDemographics>{''.join(waveforms)}</RestingECG>"
    )


def write_muse_xml(folder: Path) -> Corpus:
    folder.mkdir(exist_ok=True)
    signals = {f"M{number}": signal for number, signal in enumerate(three_signals())}
    for name, signal in signals.items():
        (folder / f"{name}.xml").write_text(muse_xml(signal))
    (folder / "broken.xml").write_text(muse_xml(ecg_signal(9))[:-20])
    return Corpus([folder], signals, "broken", r"^unreadable XML: ParseError: ")


def dicom_dataset(signal: Signal, leads: Sequence[str] = LEADS, units: str = "uV") -> Any:
    """Returns a dataset with the signal, and a shorter multiplex group that is derived from it."""
    dataset = pydicom.Dataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = TwelveLeadECGWaveformStorage, generate_uid()
    dataset.PatientID, dataset.PatientAge, dataset.PatientSex = "D1", "056Y", "F"
    dataset.WaveformSequence = [
        _multiplex_group(signal[:, :length], leads, units, originality)
        for length, originality in ((600, "DERIVED"), (signal.shape[1], "ORIGINAL"))
    ]
    return dataset


def _multiplex_group(signal: Signal, leads: Sequence[str], units: str, originality: str) -> Any:
    group = pydicom.Dataset()
    group.WaveformOriginality, group.SamplingFrequency = originality, 500
    group.NumberOfWaveformChannels, group.NumberOfWaveformSamples = len(leads), signal.shape[1]
    group.WaveformBitsAllocated, group.WaveformSampleInterpretation = 16, "SS"
    group.ChannelDefinitionSequence = []
    for lead in leads:
        source, unit, channel = pydicom.Dataset(), pydicom.Dataset(), pydicom.Dataset()
        source.CodeMeaning, source.CodeValue, source.CodingSchemeDesignator = f"Lead {lead}", "5.6.3-9-1", "SCPECG"
        unit.CodeValue = units
        channel.ChannelSourceSequence, channel.ChannelSensitivityUnitsSequence = [source], [unit]
        channel.ChannelSensitivity, channel.ChannelSensitivityCorrectionFactor, channel.ChannelBaseline = 2, 0.5, 7
        channel.WaveformBitsStored = 16
        group.ChannelDefinitionSequence.append(channel)
    group.WaveformData = (signal - 7).T.astype("<i2").tobytes()
    return group


def save_dicom(path: Path, dataset: Any) -> None:
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.save_as(path, enforce_file_format=True)


def write_dicom(folder: Path) -> Corpus:
    folder.mkdir(exist_ok=True)
    signals = {f"1.2.{number}": signal for number, signal in enumerate(three_signals())}
    for name, signal in signals.items():
        save_dicom(folder / name, dicom_dataset(signal))
    (folder / "readme.txt").write_text("no DICOM")
    (folder / "broken.dcm").write_bytes(bytes(128) + b"DICM and no more")
    return Corpus([folder], signals, "broken", r"^(unreadable DICOM|no waveform): ")


def write_edf(folder: Path) -> Corpus:
    folder.mkdir(exist_ok=True)
    signals = {f"S{number}": ecg_signal(number, 5000 + 500 * number) for number in range(3)}
    for name, signal in signals.items():
        edf_signals = [
            EdfSignal(row.astype(float), 500, label=f"ECG {lead}", physical_dimension="uV", physical_range=(-32768, 32767))
            for lead, row in zip(LEADS, signal, strict=True)
        ]
        Edf(edf_signals, data_record_duration=1).write(folder / f"{name}.edf")
    (folder / "broken.edf").write_bytes((folder / "S0.edf").read_bytes()[:-7000])
    return Corpus([folder], signals, "broken", r"^truncated EDF: ", tolerance=2e-3)


CORPORA: dict[str, Callable[[Path], Corpus]] = {
    "physionet2021": write_physionet2021,
    "ptbxl": write_ptbxl,
    "mimic_iv_ecg": write_mimic_iv_ecg,
    "code15": write_code15,
    "sami_trop": write_sami_trop,
    "wfdb": write_wfdb,
    "hdf5": write_hdf5,
    "numpy": write_numpy,
    "muse_xml": write_muse_xml,
    "dicom": write_dicom,
    "edf": write_edf,
}
