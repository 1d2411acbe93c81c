"""Which labels a model is evaluated with, and where its outputs for them are."""

from pathlib import Path

import pytest
from saved_model import save_tiny_classifier

from data_tools.labels import LabelDefinition, cinc2021
from engine.inference.label_source import align_outputs, choose_labeler
from engine.models import ModelConfig, load
from engine.options import UserError

RHYTHMS = LabelDefinition(
    name="rhythm",
    kind="multilabel",
    classes=("AF", "PVC", "NSR"),
    codes=(("164889003",), ("427172004", "17338001"), ("426783006",)),
)


def config(folder: Path, *names: str) -> ModelConfig:
    definition = LabelDefinition(name="theirs", kind="multilabel", classes=names)
    return load(save_tiny_classifier(folder / "-".join(names), definition)).config


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (("AF", "PVC", "NSR"), [0, 1, 2]),
        (("NSR", "AF", "PVC"), [1, 2, 0]),
        (("17338001", "426783006", "AF"), [2, 0, 1]),
        (("label_0", "label_1", "label_2"), [0, 1, 2]),
    ],
)
def test_outputs_are_found_by_name_or_code(tmp_path: Path, names: tuple[str, ...], places: list[int]) -> None:
    assert align_outputs(config(tmp_path, *names), RHYTHMS).tolist() == places


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("AF", "PVC"), "the model has 2 labels, but 'rhythm' has 3, such as 'AF'"),
        (("AF", "PVC", "LBBB"), "the model has 3 labels, such as 'LBBB', but 'rhythm' has 3"),
        (("427172004", "17338001", "AF"), "the model has 3 labels, but 'rhythm' has 3"),
        (("label_0", "label_1"), "the model has 2 labels, such as 'label_0'"),
    ],
)
def test_other_labels_are_refused(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        align_outputs(config(tmp_path, *names), RHYTHMS)


def test_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the model's labels are of kind 'multilabel', but 'af' is of kind 'binary'"):
        align_outputs(config(tmp_path, "af"), LabelDefinition(name="af", kind="binary", classes=("af",)))


def test_the_default_are_the_models_own_labels(tmp_path: Path) -> None:
    assert choose_labeler(None, None, "multilabel", (), cinc2021()).definition == cinc2021()
    table = tmp_path / "labels.csv"
    table.write_text("recording,AF,PVC,NSR\na,1,0,0\n")
    assert choose_labeler(None, table, "multilabel", (), RHYTHMS).definition == RHYTHMS
    (tmp_path / "ptbxl_database.csv").write_text("ecg_id,scp_codes\n1,{'NORM': 100.0}\n")
    ptbxl = LabelDefinition(name="ptbxl-superdiagnostic", kind="multilabel", classes=("a",))
    labeler = choose_labeler(None, tmp_path / "ptbxl_database.csv", "multilabel", (), ptbxl)
    assert labeler.definition.classes == ("CD", "HYP", "MI", "NORM", "STTC")
    with pytest.raises(UserError, match="the model's labels, 'rhythm', need a table: set --label-table"):
        choose_labeler(None, None, "multilabel", (), RHYTHMS)
