"""The 26 classes that the PhysioNet/CinC Challenge 2021 scores."""

from data_tools.diagnoses import SCORED_DIAGNOSES
from data_tools.labels.definition import LabelDefinition

# In the order of the Challenge's table of rewards (weights.csv of its evaluation code). Codes in one line are scored as the
# same diagnosis (dx_mapping_scored.csv); the last one names the class.
_CLASSES = (
    ("164889003",),
    ("164890007",),
    ("6374002",),
    ("426627000",),
    ("733534002", "164909002"),
    ("713427006", "59118001"),
    ("270492004",),
    ("713426002",),
    ("39732003",),
    ("445118002",),
    ("164947007",),
    ("251146004",),
    ("111975006",),
    ("698252002",),
    ("426783006",),
    ("63593006", "284470004"),
    ("10370003",),
    ("365413008",),
    ("17338001", "427172004"),
    ("164917005",),
    ("47665007",),
    ("427393009",),
    ("426177001",),
    ("427084000",),
    ("164934002",),
    ("59931005",),
)


def cinc2021() -> LabelDefinition:
    """Returns the definition of the Challenge's 26 classes by their SNOMED CT codes, multilabel."""
    names = tuple(SCORED_DIAGNOSES[codes[-1]] for codes in _CLASSES)
    return LabelDefinition(name="cinc2021", kind="multilabel", classes=names, codes=_CLASSES)
