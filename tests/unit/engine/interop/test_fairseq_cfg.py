"""The cfg is read strictly, by type, and never evaluated."""

from typing import Any

import pytest
from fairseq_checkpoints import golden_cfg
from hypothesis import given
from hypothesis import strategies as st

from engine.interop.fairseq_cfg import MODELS, parse_conv_layers, read_cfg
from engine.options import UserError

TRIPLES = st.lists(st.tuples(*[st.integers(0, 999_999)] * 3), min_size=1, max_size=4)


@given(st.lists(st.tuples(TRIPLES, st.integers(1, 5)), min_size=1, max_size=3), st.booleans())
def test_sums_of_lists_and_multiples_are_read(terms: list[tuple[list[tuple[int, int, int]], int]], compact: bool) -> None:
    text = " + ".join(f"{triples} * {number}" if number > 1 else str(triples) for triples, number in terms)
    layers = [layer for triples, number in terms for layer in triples * number]
    assert parse_conv_layers(text.replace(" ", "") if compact else text) == layers
    assert parse_conv_layers(layers) == layers
    assert parse_conv_layers([list(layer) for layer in layers]) == layers


@pytest.mark.parametrize(
    "value",
    [
        "__import__('os').system('true')",
        "[(256, 2, 2)] * len('abcd')",
        "[(256, 2, 2)] * 4; print(1)",
        "[(256, 2, 2)] * 4 +",
        "[(256, 2, 2), *[(1, 2, 2)]]",
        "[(2**8, 2, 2)]",
        "[(256, 2)] * 4",
        "[(256, 2, 2)] * 99999999999",
        "[(256, 2, 2)] * 65",
        "[(256, 2, 2)] * 0",
        "[]",
        "",
        "[(-256, 2, 2)]",
        "(" * 5000,
        "[(1, 1, 1)]" * 5000,
        [],
        [[256, 2]],
        [[256, 2, True]],
        ["abc"],
        None,
        4,
    ],
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not|convolutions"):
        parse_conv_layers(value)


def mistake(cfg: Any) -> str:
    with pytest.raises(UserError) as error:
        read_cfg("file.pt", cfg)
    assert str(error.value).startswith("file.pt: cfg")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_expressions_are_refused_in_one_line() -> None:
    line = mistake(golden_cfg("group_norm", conv_feature_layers="__import__('os').system('touch here')"))
    assert "cfg.model.conv_feature_layers" in line
    assert "expressions are not evaluated" in line


def test_an_unknown_model_lists_the_known_ones() -> None:
    line = mistake(golden_cfg("group_norm", _name="resnet"))
    assert all(name in line for name in ("resnet", *MODELS))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("conv_bias", True),
        ("layer_norm_first", True),
        ("quantize_input", True),
        ("conv_feature_layers", "[(256, 3, 2)] * 4"),
        ("conv_feature_layers", "[(256, 2, 2), (128, 2, 2)]"),
        ("extractor_mode", "batch_norm"),
        ("extractor_mode", ["default"]),
        ("mask_prob", float("nan")),
        ("encoder_embed_dim", "768"),
        ("encoder_embed_dim", None),
        ("encoder_layers", 2.0),
        ("encoder_layers", 10_000),
        ("encoder_embed_dim", 10**12),
        ("encoder_layers", True),
        ("encoder_attention_heads", 5),
        ("conv_pos_groups", 0),
        ("dropout", "0.1"),
        ("dropout", 1.5),
        ("quantize_targets", "yes"),
        ("latent_temp", "(2, 0.5, f())"),
        ("latent_temp", [2.0]),
        ("latent_groups", 3),
        ("_name", None),
        ("_name", ["wav2vec2"]),
    ],
)
def test_wrong_values_are_named_in_one_line(key: str, value: object) -> None:
    mistake(golden_cfg("group_norm", **{key: value}))


@pytest.mark.parametrize("rate", [250.0, "250", 0, -1, None])
def test_sampling_rates_are_never_guessed(rate: object) -> None:
    cfg = golden_cfg("group_norm")
    cfg["task"]["sample_rate"] = 250
    assert read_cfg("file.pt", cfg).task.sample_rate == 250
    cfg["task"]["sample_rate"] = rate
    assert "cfg.task.sample_rate" in mistake(cfg)


@pytest.mark.parametrize(
    "cfg", [None, {}, [], "cfg", {"model": None}, {"model": "wav2vec2"}, {"model": {}}, {"model": {"_name": 1}}]
)
def test_a_cfg_of_another_form_is_refused(cfg: object) -> None:
    mistake(cfg)


def test_missing_keys_have_the_official_defaults() -> None:
    model = read_cfg("file.pt", {"model": {"_name": "wav2vec2_cmsc", "quantize_targets": True, "final_dim": 256}})
    encoder = model.encoder
    assert (model.num_leads, encoder.feature_channels, encoder.feature_blocks, encoder.norm) == (12, 256, 4, "group_norm")
    assert (encoder.width, encoder.depth, encoder.num_heads, encoder.mlp_width) == (768, 12, 12, 3072)
    assert (encoder.pos_kernel, encoder.pos_groups) == (128, 16)
    assert model.task.sample_rate == 500
    assert model.objective is not None
    w2v = model.objective["w2v"]
    assert (w2v["num_codebooks"], w2v["num_codes"], w2v["code_width"], w2v["final_width"]) == (2, 320, 256, 256)
    assert w2v["mask_probability"] == pytest.approx(0.065)


def test_final_and_latent_widths_fall_back_as_officially() -> None:
    model = read_cfg("file.pt", {"model": {"_name": "wav2vec2", "quantize_targets": True, "latent_dim": 128}})
    assert model.objective is not None
    assert (model.objective["final_width"], model.objective["code_width"]) == (768, 128)


def test_a_fine_tuned_encoder_is_described_by_its_pre_training() -> None:
    cfg = golden_cfg("layer_norm")
    tuned = {"_name": "ecg_transformer_classifier", "num_labels": 3, "args": cfg, "dropout": 0.2}
    encoder = read_cfg("file.pt", {"model": tuned}).encoder
    assert (encoder.norm, encoder.width, encoder.depth) == ("layer_norm", 64, 2)
    assert encoder.dropout == 0.2
