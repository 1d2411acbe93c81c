"""Official checkpoints to the native folder and back: nothing random, nothing lost, and the official outputs."""

from pathlib import Path

import pytest
import torch
from fairseq_checkpoints import (
    LABELS,
    NUM_LABELS,
    fine_tuned,
    golden_cfg,
    random_weights,
    save_checkpoint,
    with_old_names,
)
from golden_weights import load_golden, official_weights
from tiny_model import tiny_encoder_options
from torch import Tensor

import engine.models
from engine.interop.fairseq import export_fairseq, import_fairseq
from engine.interop.native import empty_tensors, objective_section
from engine.models import EncoderOptions, ModelConfig
from engine.models.feature_encoder import FeatureNorm
from engine.objectives import OBJECTIVES
from engine.options import UserError

NORMS = pytest.mark.parametrize("norm", ["group_norm", "layer_norm"])


def convert(
    tmp_path: Path, weights: dict[str, Tensor], norm: FeatureNorm = "group_norm", **changes: object
) -> engine.models.PretrainedModel:
    """Converts weights with the golden cfg, and loads the result."""
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg(norm, **changes), weights)
    import_fairseq(checkpoint, tmp_path / "model")
    return engine.models.load(tmp_path / "model")


def refused(tmp_path: Path, weights: dict[str, Tensor], **changes: object) -> str:
    """Returns the line with which a checkpoint is refused."""
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg("group_norm", **changes), weights)
    with pytest.raises(UserError) as error:
        import_fairseq(checkpoint, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert "\n" not in str(error.value)
    assert "official.pt" in str(error.value)
    return str(error.value)


def exported(tmp_path: Path) -> dict[str, Tensor]:
    """Returns the state dict of the exported checkpoint."""
    export_fairseq(tmp_path / "model", tmp_path / "back.pt")
    weights: dict[str, Tensor] = torch.load(tmp_path / "back.pt", weights_only=True)["model"]
    return weights


def assert_identical(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        assert torch.equal(actual[name], tensor), name


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@NORMS
def test_outputs_equal_the_official_ones(tmp_path: Path, norm: FeatureNorm) -> None:
    golden = load_golden(norm)
    model = convert(tmp_path, official_weights(golden), norm)
    with torch.no_grad():
        output = model.encoder(golden["source"])
        masked = model.encoder(golden["source"], golden["mask"])
    assert relative_error(output.context, golden["encoder_out"]) < 1e-5
    assert relative_error(output.features.mT, golden["conv_features"]) < 1e-5
    assert relative_error(masked.context, golden["masked_encoder_out"]) < 1e-5
    assert relative_error(model.embed(golden["source"]), golden["pooled"]) < 1e-5
    assert_identical(exported(tmp_path), official_weights(golden))


@NORMS
def test_logits_equal_the_official_ones(tmp_path: Path, norm: FeatureNorm) -> None:
    golden = load_golden(norm)
    weights = fine_tuned(official_weights(golden))
    model = convert(
        tmp_path,
        weights,
        norm,
        _name="ecg_transformer_classifier",
        num_labels=NUM_LABELS,
        model_path="/home/somebody/pretrained.pt",
        apply_mask=False,
    )
    expected = golden["pooled"] @ weights["proj.weight"].T + weights["proj.bias"]
    assert relative_error(model.logits(golden["source"]), expected) < 1e-5
    assert_identical(exported(tmp_path), weights)


@NORMS
def test_round_trip_is_bit_for_bit(tmp_path: Path, norm: FeatureNorm) -> None:
    weights = random_weights(norm)
    model = convert(tmp_path, weights, norm)
    assert model.config.kind == "pretraining"
    assert model.encoder.options.norm == norm
    assert_identical(exported(tmp_path), weights)
    # Importing the exported checkpoint also checks its cfg.
    import_fairseq(tmp_path / "back.pt", tmp_path / "again")
    again = engine.models.load(tmp_path / "again")
    assert_identical(again.state_dict(), model.state_dict())
    assert again.config.model_dump(exclude={"provenance"}) == model.config.model_dump(exclude={"provenance"})


def test_older_names_are_accepted(tmp_path: Path) -> None:
    weights = random_weights("group_norm")
    old = {
        name.replace("conv_pos.pos_conv.0.", "encoder.pos_conv.0."): tensor for name, tensor in with_old_names(weights).items()
    }
    assert "encoder.pos_conv.0.weight_g" in old
    convert(tmp_path, old)
    assert_identical(exported(tmp_path), weights)


def test_both_names_of_one_weight_are_refused(tmp_path: Path) -> None:
    weights = random_weights("group_norm")
    line = refused(tmp_path, weights | with_old_names(weights))
    assert "unexpected" in line
    assert "weight_g" in line


def test_every_key_of_the_file_is_used_or_reported(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg("group_norm"), random_weights("group_norm"))
    notes = import_fairseq(checkpoint, tmp_path / "model")
    ignored = {note.split()[1] for note in notes if note.startswith("ignored: ")}
    assert ignored == {"args", "criterion", "optimizer_history", "task_state", "extra_state", "last_optimizer_state"}


def test_unused_heads_are_reported(tmp_path: Path) -> None:
    weights = {name: tensor for name, tensor in random_weights("group_norm").items() if "quantizer" not in name}
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg("group_norm", quantize_targets=False), weights)
    notes = import_fairseq(checkpoint, tmp_path / "model")
    for head in ("project_q.weight", "final_proj.bias"):
        assert any(note.startswith(f"ignored: {head} (") for note in notes)
    assert engine.models.load(tmp_path / "model").config.kind == "encoder"


@pytest.mark.parametrize("name", ["ecg_transformer", "clocs", "simclr", "3kg"])
def test_encoders_without_heads(tmp_path: Path, name: str) -> None:
    heads = ("mask_emb", "quantizer.", "project_q.", "final_proj.")
    weights = {name: tensor for name, tensor in random_weights("layer_norm").items() if not name.startswith(heads)}
    model = convert(tmp_path, weights, "layer_norm", _name=name, apply_mask=False)
    assert model.config.kind == "encoder"
    assert not model.encoder.mask_embedding.embedding.any()  # zero, not random
    assert_identical(exported(tmp_path), weights)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_encoder_of_every_objective_survives_a_round_trip(tmp_path: Path, name: str) -> None:
    options = tiny_encoder_options()
    objective = objective_section(name, {})
    config = ModelConfig(kind="pretraining", encoder=options, objective=objective)
    tensors = {n: torch.randn(tensor.shape) for n, tensor in empty_tensors("here", config).items()}
    engine.models.save(tmp_path / "model", config, tensors)
    export_fairseq(tmp_path / "model", tmp_path / "back.pt")
    import_fairseq(tmp_path / "back.pt", tmp_path / "again")
    again = engine.models.load(tmp_path / "again")
    assert_identical(again.state_dict(), {n: tensor for n, tensor in tensors.items() if n.startswith("encoder.")})
    assert again.config.encoder == options
    assert again.config.kind == ("pretraining" if name.startswith("w2v") else "encoder")


def test_identification_keeps_the_encoder(tmp_path: Path) -> None:
    weights = {name: t for name, t in fine_tuned(random_weights("group_norm")).items() if not name.startswith("proj.")}
    checkpoint = save_checkpoint(
        tmp_path / "id.pt", golden_cfg("group_norm", _name="arcface"), weights | {"kernel": torch.zeros(9, 64)}
    )
    notes = import_fairseq(checkpoint, tmp_path / "model")
    assert any(note.startswith("ignored: kernel (") for note in notes)
    assert engine.models.load(tmp_path / "model").config.kind == "encoder"


def test_any_architecture_in_the_cfg(tmp_path: Path) -> None:
    options = EncoderOptions(
        feature_channels=24,
        feature_blocks=3,
        width=24,
        depth=3,
        num_heads=6,
        mlp_width=40,
        pos_kernel=5,
        pos_groups=2,
    )
    config = ModelConfig(kind="encoder", encoder=options, leads=("I", "II", "V2"))
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(t.shape, generator=generator) * 0.1 for name, t in empty_tensors("here", config).items()} | {
        # As wide as the transformer: the official encoder then has no projection.
        "encoder.feature_projection.weight": torch.eye(24),
        "encoder.feature_projection.bias": torch.zeros(24),
    }
    engine.models.save(tmp_path / "model", config, tensors)
    weights = exported(tmp_path)
    assert not any(name.startswith("post_extract_proj") for name in weights)
    with pytest.raises(UserError, match="--leads"):
        import_fairseq(tmp_path / "back.pt", tmp_path / "again")
    import_fairseq(tmp_path / "back.pt", tmp_path / "again", leads=["i", "ii", "v2"], normalization="zscore_per_lead")
    again = engine.models.load(tmp_path / "again")
    assert_identical(again.state_dict(), tensors)
    assert again.config.leads == ("I", "II", "V2")
    assert again.config.normalization == "zscore_per_lead"


def test_a_projection_without_an_official_form_is_refused(tmp_path: Path) -> None:
    options = EncoderOptions(feature_channels=32, width=32, depth=1, num_heads=4, mlp_width=8, pos_kernel=4, pos_groups=4)
    config = ModelConfig(kind="encoder", encoder=options)
    engine.models.save(tmp_path / "model", config, {n: torch.ones(t.shape) for n, t in empty_tensors("here", config).items()})
    with pytest.raises(UserError, match="not the identity"):
        export_fairseq(tmp_path / "model", tmp_path / "back.pt")
    assert not (tmp_path / "back.pt").exists()


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".CSV"])
def test_label_names_from_a_file(tmp_path: Path, suffix: str) -> None:
    weights = fine_tuned(random_weights("group_norm"))
    cfg = golden_cfg("group_norm", _name="ecg_transformer_classifier", num_labels=NUM_LABELS)
    checkpoint = save_checkpoint(tmp_path / "dx.pt", cfg, weights)
    labels = tmp_path / f"labels{suffix}"
    header = "name,count\n" if suffix != ".txt" else ""
    labels.write_text(header + "".join(f"{name}{',3' if header else ''}\n" for name in LABELS))
    notes = import_fairseq(checkpoint, tmp_path / "model", labels=labels)
    assert engine.models.load(tmp_path / "model").config.labels == LABELS
    assert not any("label_0" in note for note in notes)
    labels.write_text("name\nAF\n" if header else "AF\n")
    with pytest.raises(UserError, match=r"expected 5 distinct labels for .* got 1"):
        import_fairseq(checkpoint, tmp_path / "other", labels=labels)


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"title\nAF\n", "needs a column 'name'"), (b"name\n" + 200_000 * b"A", "field"), (b"name\n\xff", "not UTF-8")],
)
def test_other_csv_files_are_refused(tmp_path: Path, content: bytes, word: str) -> None:
    cfg = golden_cfg("group_norm", _name="ecg_transformer_classifier", num_labels=NUM_LABELS)
    checkpoint = save_checkpoint(tmp_path / "dx.pt", cfg, fine_tuned(random_weights("group_norm")))
    (tmp_path / "labels.csv").write_bytes(content)
    with pytest.raises(UserError, match=word) as error:
        import_fairseq(checkpoint, tmp_path / "model", labels=tmp_path / "labels.csv")
    assert "labels.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_assumptions_are_reported(tmp_path: Path) -> None:
    cfg = golden_cfg("group_norm", _name="linear_projection", num_labels=NUM_LABELS)
    cfg["task"]["filter"] = True
    checkpoint = save_checkpoint(tmp_path / "dx.pt", cfg, fine_tuned(random_weights("group_norm")))
    notes = " ".join(import_fairseq(checkpoint, tmp_path / "model"))
    for word in ("--normalization none", "label_0", "mask embedding", "filtered"):
        assert word in notes
    provenance = engine.models.load(tmp_path / "model").config.provenance
    assert provenance["file"] == "dx.pt"
    assert "somebody" not in (tmp_path / "model" / "config.json").read_text()


def test_standardized_input_is_refused(tmp_path: Path) -> None:
    cfg = golden_cfg("group_norm")
    cfg["task"]["normalize"] = True
    checkpoint = save_checkpoint(tmp_path / "official.pt", cfg, random_weights("group_norm"))
    with pytest.raises(UserError, match="--normalization none"):
        import_fairseq(checkpoint, tmp_path / "model")
    import_fairseq(checkpoint, tmp_path / "model", normalization="none")


def test_a_missing_key_is_refused(tmp_path: Path) -> None:
    weights = random_weights("group_norm")
    del weights["encoder.layers.1.fc2.bias"]
    assert "missing encoder.layers.1.fc2.bias" in refused(tmp_path, weights)


def test_an_unexpected_key_is_refused(tmp_path: Path) -> None:
    weights = random_weights("group_norm") | {"encoder.layers.2.fc2.bias": torch.zeros(64)}
    assert "unexpected encoder.layers.2.fc2.bias" in refused(tmp_path, weights)


def test_another_shape_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, random_weights("group_norm"), encoder_ffn_embed_dim=256)
    assert "[128" in line
    assert "[256" in line


def test_the_wrong_number_of_leads_is_refused(tmp_path: Path) -> None:
    assert "--leads" in refused(tmp_path, random_weights("group_norm"), in_d=6)
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg("group_norm"), random_weights("group_norm"))
    with pytest.raises(UserError, match=r"expected 12 distinct leads .* got 2"):
        import_fairseq(checkpoint, tmp_path / "model", leads=["I", "II"])
    with pytest.raises(UserError, match="unknown lead 'X1'"):
        import_fairseq(checkpoint, tmp_path / "model", leads=["X1"])


def test_the_other_norm_is_refused(tmp_path: Path) -> None:
    assert "conv_layers.0.2.1" in refused(tmp_path, random_weights("group_norm"), extractor_mode="layer_norm")


def test_nonfinite_weights_are_refused(tmp_path: Path) -> None:
    weights = random_weights("group_norm")
    weights["encoder.layers.0.fc1.weight"][3, 4] = float("nan")
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg("group_norm"), weights)
    with pytest.raises(UserError, match="NaN"):
        import_fairseq(checkpoint, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("value", [torch.arange(64), torch.eye(64).to_sparse(), torch.zeros(64, device="meta"), "text", 3])
def test_values_that_are_not_weights_are_refused(tmp_path: Path, value: object) -> None:
    weights = random_weights("group_norm") | {"mask_emb": value}
    assert "mask_emb" in refused(tmp_path, weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [{}, [1, 2], {"model": {}}, {"state_dict": {"w": torch.zeros(2)}}, torch.zeros(3)])
def test_another_kind_of_checkpoint_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(UserError, match="not a checkpoint of fairseq-signals"):
        import_fairseq(tmp_path / "other.pt", tmp_path / "model")


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg("group_norm"), random_weights("group_norm"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        import_fairseq(checkpoint, tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["notes.txt"]
    import_fairseq(checkpoint, tmp_path / "free")
    with pytest.raises(UserError, match="already exists"):
        export_fairseq(tmp_path / "free", checkpoint)
