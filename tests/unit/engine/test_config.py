from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config import RunConfig
from engine.config_files import load_config
from engine.options import UserError

CONFIGS = Path(__file__).parents[3] / "configs"
PRESETS = sorted(file for file in CONFIGS.glob("pretrain/*.yaml") if file.stem != "base")
PAPER = CONFIGS / "pretrain" / "w2v_cmsc_rlm.yaml"


def load(*overrides: str) -> RunConfig:
    return load_config([PAPER], overrides)


def test_the_papers_preset_has_the_papers_numbers() -> None:
    config = load()
    assert (config.model.width, config.model.depth, config.model.num_heads, config.model.mlp_width) == (768, 12, 12, 3072)
    assert config.train.batch_size == 512
    assert config.train.epochs == 200
    assert config.optimizer.learning_rate == 5e-5
    assert config.optimizer.betas == (0.9, 0.98)
    assert config.model.norm == "layer_norm"


@pytest.mark.parametrize("file", [*PRESETS, CONFIGS / "quickstart.yaml"], ids=lambda f: f.stem)
def test_every_preset_is_valid_and_writes_to_a_folder_of_its_own_name(file: Path) -> None:
    assert load_config([file]).output_dir == Path("runs") / file.stem


def test_every_system_of_the_papers_tables_has_its_preset() -> None:
    physio = ["powerline", "electromyographic", "baseline_wander", "baseline_shift"]
    rlm = ["random_lead_masking"]
    expected = {
        "w2v": ("w2v", []),
        "w2v_rlm": ("w2v", rlm),
        "cmsc": ("cmsc", []),
        "cmsc_rlm": ("cmsc", rlm),
        "3kg": ("3kg", []),
        "simclr_rlm": ("simclr", rlm),
        "w2v_cmsc": ("w2v_cmsc", []),
        "w2v_cmsc_rlm": ("w2v_cmsc", rlm),
        "w2v_cmsc_rlm_physio4": ("w2v_cmsc", [*physio, *rlm]),
        "w2v_cmsc_rlm_physio3": ("w2v_cmsc", [*physio[:3], *rlm]),
        "w2v_cmsc_physio4": ("w2v_cmsc", physio),
        "w2v_cmsc_physio3": ("w2v_cmsc", physio[:3]),
        "official_w2v_cmsc_rlm": ("w2v_cmsc", rlm),
    }
    found = {}
    for file in PRESETS:
        config = load_config([file])
        augmentations = config.data.augmentations.model_dump(exclude_none=True)
        found[file.stem] = (config.objective.name, sorted(augmentations))
        assert config.train.batch_size == 512
        if rlm[0] in augmentations:
            assert augmentations[rlm[0]]["p"] == 0.5
    assert found | {name: (objective, sorted(names)) for name, (objective, names) in expected.items()} == found


def test_the_official_preset_differs_where_the_official_code_does() -> None:
    paper, official = (
        load_config([CONFIGS / "pretrain" / f"{name}.yaml"]) for name in ("w2v_cmsc_rlm", "official_w2v_cmsc_rlm")
    )
    assert official.deepspeed(4)["train_micro_batch_size_per_gpu"] == 64
    assert official.deepspeed(4)["gradient_accumulation_steps"] == 2

    def changes(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in after.items():
            if isinstance(value, dict) and isinstance(before[key], dict):
                found |= changes(before[key], value, f"{prefix}{key}.")
            elif value != before[key]:
                found[prefix + key] = value
        return found

    assert changes(paper.to_mapping(), official.to_mapping()) == {
        "output_dir": "runs/official_w2v_cmsc_rlm",
        "model.norm": "group_norm",
        "objective.w2v.masking": "fixed_count",
        "objective.cmsc.form": "symmetric",
        "objective.cmsc.negatives": "own_rank",
        "objective.cmsc.constant_norms": True,
        "train.micro_batch_size": 64,
        "train.precision": "fp32",
    }


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_variants_lie_over_a_preset(stage: int) -> None:
    config = load_config([PAPER, CONFIGS / "deepspeed" / f"zero{stage}.yaml"])
    assert config.deepspeed(1)["zero_optimization"]["stage"] == stage


def test_the_resolved_configuration_reads_back(tmp_path: Path) -> None:
    config = load("objective.w2v.num_negatives=50", "data.path=/data/x", "train.batch_size=64")
    file = tmp_path / "resolved.yaml"
    file.write_text(config.to_yaml())
    assert load_config([file]) == config


def test_later_words_win_over_files_and_earlier_words() -> None:
    assert load("seed=3", "seed=4").seed == 4
    same_name = load("objective.w2v.num_negatives=7", "objective.name=w2v_cmsc")
    assert same_name == load("objective.w2v.num_negatives=7")


@pytest.mark.parametrize(
    ("word", "fragments"),
    [
        ("model.widht=64", ["model.widht", "did you mean 'model.width'", "'model.widht=64'"]),
        ("trian.steps=5", ["trian", "did you mean 'train'"]),
        ("zero.stage=4", ["zero.stage"]),
        ("objective.name=w2v_cmcs", ["no objective is called 'w2v_cmcs'", "did you mean 'w2v_cmsc'"]),
        ("objective.w2v.num_negativs=5", ["objective.w2v.num_negativs", "did you mean 'objective.w2v.num_negatives'"]),
        ("train.precision=fp16", ["train.precision", "fp16"]),
        ("train.steps=10", ["exactly one of train.steps and train.epochs"]),
        ("optimizer.learning_rate=-1", ["optimizer.learning_rate", "greater than 0"]),
        ("data.augmentations.random_lead_maskin.p=0.1", ["random_lead_maskin", "random_lead_masking"]),
        ("nonsense", ["key.path=value"]),
        ("seed=[", ["not valid YAML"]),
        ("seed=2024-13-45", ["not valid YAML"]),
        ("seed={[1]: 2}", ["[1] is not a word"]),
        ("seed=99999999999999999999", ["seed", "less than"]),
        ("objective.name=[w2v]", ["no objective is called"]),
        ("lead=6", ["lead: no such key", "did you mean 'leads'"]),
        ("leads=7", ["'leads=7'", "no combination of 7 leads"]),
        ("data.augmentations.random_lead_masking.p=yes", ["random_lead_masking.p", "truth value"]),
        ("leads=true", ["data.leads"]),
        ("leads=1", ["data: random lead masking needs two leads"]),
        ("leads={a: 1}", ["'leads={a: 1}'", "data.leads"]),
        ("objective={name: w2v, masking: fixed}", ["objective.masking", "independent_starts", "fixed_count"]),
        ("objective={name: 3kg, max_scale: 0.5}", ["objective.max_scale", "greater than or equal to 1"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_be_right(word: str, fragments: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load(word)
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_a_mistake_names_the_file_it_is_in(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"base": str(PAPER), "model": {"detph": 3}}))
    with pytest.raises(UserError, match=r"mine\.yaml: model\.detph: no such key; did you mean 'model\.depth'"):
        load_config([file])


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("seed: 1\nseed: 2\n", "the key 'seed' is written twice"),
        ("- 1\n", "must hold a mapping"),
        ("base: mine.yaml\n", "comes back to itself"),
        ("base: absent.yaml\n", "cannot be read"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, text: str, fragment: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=fragment) as caught:
        load_config([file])
    assert "\n" not in str(caught.value)


def test_another_objective_does_not_inherit_the_options_of_the_one_it_replaces() -> None:
    config = load_config([PAPER], ["objective.w2v.num_negatives=7", "objective={name: cmsc}"])
    assert config.objective.name == "cmsc"


def test_batches_are_stated_once() -> None:
    config = load("train.batch_size=48", "train.micro_batch_size=8")
    derived = config.deepspeed(2)
    assert (derived["train_batch_size"], derived["train_micro_batch_size_per_gpu"]) == (48, 8)
    assert derived["gradient_accumulation_steps"] == 3


@pytest.mark.parametrize(("world_size", "micro"), [(5, "null"), (2, "7")])
def test_a_batch_that_does_not_divide_is_refused(world_size: int, micro: str) -> None:
    with pytest.raises(UserError, match="divi"):
        load("train.batch_size=48", f"train.micro_batch_size={micro}").deepspeed(world_size)


def test_the_model_gets_as_many_channels_as_there_are_leads() -> None:
    assert load("data.leads=3").model.num_leads == 3
    assert load("data.leads=[I, V5]").model.num_leads == 2
    with pytest.raises(UserError, match=r"model\.num_leads=12"):
        load("data.leads=6", "model.num_leads=12")


def test_leads_is_short_for_data_leads(tmp_path: Path) -> None:
    for leads in ("12", "6", "3", "2", "[I, V5]"):
        assert load(f"leads={leads}") == load(f"data.leads={leads}")
    assert load("leads=6", "data.leads=6").model.num_leads == 6
    assert load("leads=6", "leads=3").model.num_leads == 3
    for words in (("leads=6", "data.leads=3"), ("data.leads=3", "leads=6")):
        with pytest.raises(UserError, match=r"'leads=6': leads=6 is short for data\.leads, which 'data\.leads=3' sets to 3"):
            load(*words)
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"base": str(PAPER), "leads": 2}))
    assert load_config([file]).model.num_leads == 2
    assert load_config([file], ["data.leads=3"]).model.num_leads == 3
    file.write_text(yaml.safe_dump({"base": str(PAPER), "leads": 2, "data": {"leads": 3}}))
    with pytest.raises(UserError, match=r"mine\.yaml: leads=2 is short for data\.leads"):
        load_config([file])
    file.write_text("base: " + str(PAPER) + "\nleads: 2\ndata:\n")
    with pytest.raises(UserError, match=r"mine\.yaml: data"):
        load_config([file])


def test_3kg_needs_all_leads() -> None:
    preset = CONFIGS / "pretrain" / "3kg.yaml"
    with pytest.raises(UserError, match=r"'leads=6': the objective 3kg needs all 12 leads, got 6"):
        load_config([preset], ["leads=6"])


def test_an_unknown_preset_names_the_nearest(tmp_path: Path) -> None:
    folder = CONFIGS / "pretrain"
    for wrong, right in (("w2v_cmcs.yaml", "w2v_cmsc.yaml"), ("w2v_cmsc_rlm", "w2v_cmsc_rlm.yaml"), ("3gk.yaml", "3kg.yaml")):
        with pytest.raises(UserError) as caught:
            load_config([folder / wrong])
        assert str(caught.value).endswith(f"cannot be read: No such file or directory; did you mean '{folder / right}'?")
    for hopeless in (folder / "quantum", folder / "nonsense.yaml", tmp_path / "nowhere" / "w2v.yaml", tmp_path):
        with pytest.raises(UserError, match=r"cannot be read: [\w ]+$"):
            load_config([hopeless])
