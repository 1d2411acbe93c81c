"""GE MUSE: one ``.xml`` file per recording, with the signals in base64. Read with defusedxml (extra ``muse``).

The waveform ``Rhythm`` is used, not the median beat. MUSE stores I, II and V1 to V6; the other limb leads are derived.
"""

import base64
import binascii
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.recording import Recording, RecordingError
from data_tools.sources.channels import Channel, select_leads, units_per_millivolt
from data_tools.sources.descriptions import parse_age, parse_sex
from data_tools.sources.folder_source import FolderSource, import_extra, read_file
from data_tools.sources.protocol import RecordingFile
from data_tools.sources.walk import NameOf, name_with_suffix
from data_tools.validation import one_line

_MODULE, _EXTRA = "defusedxml.ElementTree", "muse"
_MAX_BYTES = 16 << 20  # MUSE files have less than 1 MB
_MAX_LEADS = 128
_RHYTHM = "rhythm"


class MuseXml(FolderSource):
    """The source ``muse_xml``; see :class:`data_tools.sources.folder_source.FolderSource`."""

    wanted = ".xml files of GE MUSE, at any depth"
    modules = ((_MODULE, _EXTRA),)

    @property
    def _name_of(self) -> NameOf:
        return name_with_suffix(".xml")

    def _read(self, file: RecordingFile) -> Recording:
        root = parse_xml(read_file(file.path, self._folders, _MAX_BYTES))
        if root.tag != "RestingECG":
            raise RecordingError("unexpected layout", f"the root element is '{root.tag[:40]}' instead of 'RestingECG'")
        waveform = _find_rhythm(root)
        leads = waveform.findall("LeadData")[:_MAX_LEADS]
        channels = [Channel(_text(lead, "LeadID"), _text(lead, "LeadAmplitudeUnits") or "MICROVOLTS") for lead in leads]
        rows, notes = select_leads(channels)
        signals = [_decode(leads[row], channels[row]) for row in rows.values()]
        lengths = {len(signal) for signal in signals}
        if len(lengths) > 1:
            raise RecordingError("unexpected layout", f"leads of {min(lengths)} and {max(lengths)} samples")
        signal = np.stack(signals)
        patient = root.find("PatientDemographics")
        years = _text(patient, "AgeUnits").upper() in {"", "YEARS"}
        return Recording(
            source=file.source,
            name=file.name,
            patient=_text(patient, "PatientID") or file.name,
            sampling_rate=_sampling_rate(waveform),
            leads=tuple(rows),
            num_samples=signal.shape[1],
            read=lambda start, stop: signal[:, start:stop],
            age=parse_age(_text(patient, "PatientAge"), notes) if years else None,
            sex=parse_sex(_text(patient, "Gender"), notes),
            notes=tuple(notes),
        )


def parse_xml(content: bytes) -> Any:
    """Parses XML; refuses entity declarations and external references.

    Raises:
        RecordingError: it is not well-formed, or has entities.
    """
    parser = import_extra(_MODULE, _EXTRA)
    try:
        # A MUSE file names its document type, which is not read.
        return parser.fromstring(content, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    except (SyntaxError, ValueError, LookupError) as error:  # ParseError is a SyntaxError, DefusedXmlException a ValueError
        raise RecordingError("unreadable XML", f"{type(error).__name__}: {one_line(error)[:200]}") from None


def _find_rhythm(root: Any) -> Any:
    kinds = []
    for waveform in root.findall("Waveform"):
        kinds.append(_text(waveform, "WaveformType"))
        if kinds[-1].lower() == _RHYTHM:
            return waveform
    raise RecordingError("unexpected layout", f"no waveform 'Rhythm'; available: {', '.join(kinds)[:80] or 'none'}")


def _sampling_rate(waveform: Any) -> float:
    """Returns SampleBase x 10^SampleExponent."""
    base, exponent = _number(waveform, "SampleBase"), _text(waveform, "SampleExponent") or "0"
    try:
        return base * 10.0 ** int(exponent)
    except (ValueError, OverflowError):
        raise RecordingError("unexpected layout", f"SampleExponent is '{exponent[:40]}', not a small integer") from None


def _decode(lead: Any, channel: Channel) -> NDArray[np.float32]:
    """Returns the samples of a lead in mV."""
    try:
        # Base64 is broken into lines.
        content = base64.b64decode("".join((lead.findtext("WaveFormData") or "").split()), validate=True)
    except (binascii.Error, ValueError):
        raise RecordingError("unexpected layout", f"WaveFormData of {channel.name} is not base64") from None
    if _text(lead, "LeadSampleSize") not in {"", "2"} or len(content) % 2:
        raise RecordingError("unexpected layout", f"the samples of {channel.name} are not 2 bytes each")
    digital = np.frombuffer(content, "<i2")
    announced = _text(lead, "LeadSampleCountTotal")
    if announced and announced != str(len(digital)):
        raise RecordingError("unexpected layout", f"{channel.name} has {len(digital)} of {announced[:40]} samples")
    scale = _number(lead, "LeadAmplitudeUnitsPerBit") / (units_per_millivolt(channel.unit) or 1)
    return (digital * scale).astype(np.float32)


def _text(element: Any, name: str) -> str:
    return (element.findtext(name) or "").strip() if element is not None else ""


def _number(element: Any, name: str) -> float:
    text = _text(element, name)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value == 0:
        raise RecordingError("unexpected layout", f"{name} is '{text[:40]}', not a nonzero number" if text else f"no {name}")
    return value
