from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config import FinetuneConfig, PretrainConfig, to_yaml
from engine.config import load_config as load_config_of
from engine.options import UserError

CONFIGS = Path(__file__).parents[4] / "configs"
PRESETS = sorted(file for file in CONFIGS.glob("pretrain/*.yaml") if file.stem != "base")
PAPER = CONFIGS / "pretrain" / "w2v_cmsc_rlm.yaml"


def load_config(files: Sequence[Path], overrides: Sequence[str] = ()) -> PretrainConfig:
    return load_config_of(PretrainConfig, files, overrides)


def load(*overrides: str) -> PretrainConfig:
    return load_config([PAPER], overrides)


def load_notified(*overrides: str) -> tuple[PretrainConfig, list[str]]:
    notices: list[str] = []
    return load_config_of(PretrainConfig, [PAPER], overrides, notices.append), notices


def test_the_papers_preset_has_the_papers_numbers() -> None:
    config = load()
    assert (config.model.width, config.model.depth, config.model.num_heads, config.model.mlp_width) == (768, 12, 12, 3072)
    assert config.train.batch_size == 512
    assert config.train.epochs == 200
    assert config.optimizer.learning_rate == 5e-5
    assert config.optimizer.betas == (0.9, 0.98)
    assert config.model.norm == "group_norm"


@pytest.mark.parametrize("file", [*PRESETS, CONFIGS / "quickstart.yaml"], ids=lambda f: f.stem)
def test_every_preset_is_valid_and_writes_to_a_folder_named_after_it(file: Path) -> None:
    assert load_config([file]).output_dir == Path("runs") / file.stem


def test_every_system_of_the_papers_tables_has_its_preset() -> None:
    physio = ["powerline", "electromyographic", "baseline_wander", "baseline_shift"]
    rlm = ["random_lead_masking"]
    expected = {
        "w2v": ("w2v", []),
        "w2v_rlm": ("w2v", rlm),
        "cmsc": ("cmsc", []),
        "cmsc_rlm": ("cmsc", rlm),
        "3kg": ("3kg", ["time_mask", "vcg_transform"]),
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
    assert official.train.micro_batches(4) == (64, 2)
    assert official.train.micro_batches(8) == (64, 1)

    def changes(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in after.items():
            if isinstance(value, dict) and isinstance(before[key], dict):
                found |= changes(before[key], value, f"{prefix}{key}.")
            elif value != before[key]:
                found[prefix + key] = value
        return found

    assert changes(paper.model_dump(mode="json"), official.model_dump(mode="json")) == {
        "output_dir": "runs/official_w2v_cmsc_rlm",
        "objective.w2v.masking": "fixed_count",
        "objective.cmsc.form": "symmetric",
        "objective.cmsc.negatives": "own_rank",
        "objective.cmsc.constant_norms": True,
        "objective.cmsc.identity": "recording",
        "objective.cmsc.positives": "all",
        "projection_init": "uniform",
        "train.micro_batch_size": 64,
        "train.min_compared_samples": None,
        "train.precision": "fp32",
    }


@pytest.mark.parametrize(
    "file",
    [file for file in PRESETS if not file.stem.startswith("official_") and not file.stem.endswith("_layer_norm")],
    ids=lambda file: file.stem,
)
def test_every_system_has_an_official_preset_with_its_objective_and_augmentations(file: Path) -> None:
    paper, official = load_config([file]), load_config([file.with_stem(f"official_{file.stem}")])
    assert official.objective.name == paper.objective.name
    assert official.data.augmentations.chosen().keys() == paper.data.augmentations.chosen().keys()
    assert (official.model.norm, official.projection_init, official.train.precision) == ("group_norm", "uniform", "fp32")
    assert official.sample_unit == ("crop" if "cmsc" in file.stem else "segment")
    assert official.output_dir == Path(f"runs/official_{file.stem}")


def test_an_objective_that_compares_the_segments_of_a_crop_needs_crops() -> None:
    with pytest.raises(UserError, match=r"sample_unit=segment does not work with the objective w2v_cmsc, .* sample_unit=crop"):
        load("sample_unit=segment")


def test_the_resolved_configuration_reads_back(tmp_path: Path) -> None:
    config = load("objective.w2v.num_negatives=50", "data.path=/data/x", "train.batch_size=64")
    file = tmp_path / "resolved.yaml"
    file.write_text(to_yaml(config))
    assert load_config([file]) == config


def test_later_overrides_win_over_files_and_earlier_overrides() -> None:
    assert load("seed=3", "seed=4").seed == 4
    same_name = load("objective.w2v.num_negatives=7", "objective.name=w2v_cmsc")
    assert same_name == load("objective.w2v.num_negatives=7")


@pytest.mark.parametrize(
    ("override", "fragments"),
    [
        ("model.widht=64", ["model.widht", "did you mean 'model.width'", "'model.widht=64'"]),
        ("trian.steps=5", ["trian", "did you mean 'train'"]),
        ("zero.stage=4", ["zero.stage"]),
        ("objective.name=w2v_cmcs", ["objective", "unknown name 'w2v_cmcs'", "did you mean 'w2v_cmsc'"]),
        ("objective.w2v.num_negativs=5", ["objective.w2v.num_negativs", "did you mean 'objective.w2v.num_negatives'"]),
        ("train.precision=fp16", ["train.precision", "fp16"]),
        ("train.epochs=null", ["train.steps or train.epochs is missing"]),
        ("optimizer.schedule.name=cosin", ["unknown name 'cosin'", "did you mean 'cosine'"]),
        ("optimizer.schedule={name: tri_stage, hold_fraction: 0.9}", ["optimizer.schedule", "add up to 1.7"]),
        ("optimizer.groups=[{matsch: head.*}]", ["optimizer.groups.0.matsch", "did you mean"]),
        ("learning_rate=3", ["did you mean 'optimizer.learning_rate'"]),
        ("optimizer.learning_rate=-1", ["optimizer.learning_rate", "greater than 0"]),
        ("data.augmentations.random_lead_maskin.p=0.1", ["random_lead_maskin", "random_lead_masking"]),
        ("nonsense", ["key.path=value"]),
        ("seed=[", ["not valid YAML"]),
        ("seed=2024-13-45", ["not valid YAML"]),
        ("seed={[1]: 2}", ["[1]"]),
        ("seed=99999999999999999999", ["does not fit into 64 bits"]),
        ("objective.name=[w2v]", ["objective"]),
        ("data.leads=6", ["'data.leads=6': no such key", "did you mean 'leads'"]),
        ("lead=6", ["'lead=6': no such key", "did you mean 'leads'"]),
        ("train.attention=plain", ["'train.attention=plain': no such key", "did you mean 'compute.attention'"]),
        ("data.leads=6", ["did you mean 'leads'"]),
        ("leads=7", ["'leads=7'", "no combination of 7 leads"]),
        (
            "data.augmentations.random_lead_masking.p=yes",
            ["random_lead_masking.p", "expected a number, got the boolean 'true'"],
        ),
        ("leads=true", ["leads", "boolean"]),
        ("leads=1", ["random_lead_masking needs two or more leads"]),
        ("leads={a: 1}", ["'leads={a: 1}'", "leads"]),
        ("objective={name: w2v, masking: fixed}", ["objective.masking", "independent_starts", "fixed_count"]),
        ("objective={name: 3kg, temperature: 0}", ["objective.temperature", "greater than 0"]),
        ("zero.allgather_bucket_size=1001", ["zero.allgather_bucket_size", "multiple of 2, got 1001"]),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(override: str, fragments: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load(override)
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize("override", ["data.path=s3://key:secret@bucket/a", "data.datasets=[{path: https://me:secret@host/a}]"])
def test_a_password_in_a_url_is_refused_and_not_repeated(override: str) -> None:
    with pytest.raises(UserError, match="put credentials in the environment, not in the URL") as caught:
        load(override)
    assert "secret" not in str(caught.value)


def test_a_mistake_names_the_file_it_is_in(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"base": str(PAPER), "model": {"detph": 3}}))
    with pytest.raises(UserError, match=r"mine\.yaml: model\.detph: no such key; did you mean 'model\.depth'"):
        load_config([file])


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("seed: 1\nseed: 2\n", "seed"),
        ("- 1\n", "expected a mapping"),
        ("base: mine.yaml\n", "cycle"),
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


def test_steps_take_precedence_over_epochs() -> None:
    config, notices = load_notified("train.steps=10")
    assert config.train.steps == 10
    assert not notices
    _, notices = load_notified("train.steps=10", "train.epochs=3")
    assert notices == ["'train.epochs=3' has no effect: train.steps=10 takes precedence"]


def test_an_override_without_effect_is_reported() -> None:
    _, notices = load_notified("zero.stage=0", "zero.overlap_comm=false")
    assert notices == ["'zero.overlap_comm=false' has no effect: zero.stage=0 partitions nothing"]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["mode=full", "lora_rank=4"], "lora_rank"),
        (["mode=head", "freeze_feature_encoder=true"], "freeze_feature_encoder"),
        (["zero.stage=3", "zero.allgather_bucket_size=1000"], "zero.allgather_bucket_size"),
    ],
)
def test_an_option_of_another_mode_is_reported(overrides: list[str], key: str) -> None:
    notices: list[str] = []
    load_config_of(FinetuneConfig, [CONFIGS / "finetune" / "diagnosis.yaml"], ["init_from=random", *overrides], notices.append)
    assert [f"'{overrides[-1]}' has no effect: " in notice for notice in notices] == [True]


@pytest.mark.parametrize("name", ["simclr", "3kg"])
def test_views_that_are_the_same_are_reported(name: str) -> None:
    _, notices = load_notified(f"objective={{name: {name}}}", "data.augmentations={}")
    assert any(notice.startswith(f"the objective {name} compares two views") for notice in notices)
    _, notices = load_notified(f"objective={{name: {name}}}")
    assert not any("two views" in notice for notice in notices)


def test_an_empty_mapping_clears_a_section() -> None:
    assert load().data.augmentations.random_lead_masking is not None
    assert load("data.augmentations={}").data.augmentations.random_lead_masking is None


def test_another_name_reports_the_options_it_drops(tmp_path: Path) -> None:
    config, notices = load_notified("optimizer.schedule={name: linear, warmup_steps: 7}", "optimizer.schedule.name=cosine")
    assert config.optimizer.schedule.factor(0, 100) == pytest.approx(1.0, abs=0.01)
    assert len(notices) == 1
    for fragment in ("optimizer.schedule.name=cosine", "drops options of linear", "optimizer.schedule.warmup_steps"):
        assert fragment in notices[0]


def test_the_number_of_leads() -> None:
    for leads, number in (("12", 12), ("6", 6), ("3", 3), ("[I, V5]", 2)):
        assert load(f"leads={leads}").num_leads == number


def test_the_resolved_configuration_names_the_leads_once() -> None:
    mapping = load("leads=6").model_dump(mode="json")
    assert mapping["leads"] == 6
    assert "leads" not in mapping["data"]
    assert "num_leads" not in mapping["model"]


def test_3kg_needs_all_leads() -> None:
    preset = CONFIGS / "pretrain" / "3kg.yaml"
    with pytest.raises(UserError, match=r"data\.augmentations\.vcg_transform needs all 12 leads, got 6"):
        load_config([preset], ["leads=6"])


def test_an_unknown_preset_names_the_nearest(tmp_path: Path) -> None:
    folder = CONFIGS / "pretrain"
    for wrong, right in (("w2v_cmcs.yaml", "w2v_cmsc.yaml"), ("w2v_cmsc_rlm", "w2v_cmsc_rlm.yaml"), ("3gk.yaml", "3kg.yaml")):
        with pytest.raises(UserError) as caught:
            load_config([folder / wrong])
        assert str(caught.value).endswith(f"cannot be read: No such file or directory; did you mean '{folder / right}'?")
    with pytest.raises(UserError, match=r"did you mean 'configs/quickstart\.yaml'\?$"):
        load_config([Path("quikstart.yaml")])
    for hopeless in (folder / "quantum", folder / "nonsense.yaml", tmp_path / "nowhere" / "nonsense.yaml", tmp_path):
        with pytest.raises(UserError, match=r"cannot be read: [\w ]+$"):
            load_config([hopeless])


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "some", [2]])
def test_a_micro_batch_size_is_a_number_or_auto(size: object) -> None:
    with pytest.raises(UserError, match=r"micro_batch_size=.*: expected a positive integer, 'auto' or null"):
        load(f"train.micro_batch_size={size}")


@pytest.mark.parametrize("file", sorted((CONFIGS / "finetune").glob("*.yaml")), ids=lambda file: file.stem)
def test_fine_tuning_presets_are_valid(file: Path) -> None:
    task = ["output_dir=out", "task.name=labels"] if file.stem == "base" else []
    load_config_of(FinetuneConfig, [file], ["init_from=random", *task])


def test_a_preset_is_found_in_the_package_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config([Path("configs/quickstart.yaml")]).train.steps == 400
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.yaml").write_text("train: {steps: 7}\n")
    with pytest.raises(UserError, match=r"^configs/quickstart.yaml: "):
        load_config([Path("configs/quickstart.yaml")])


@pytest.mark.parametrize("key", ["optimizer.lr", "lr", "learning_rate", "train.learning_rate"])
def test_the_learning_rate_is_suggested(key: str) -> None:
    with pytest.raises(UserError, match=rf"^'{key}=1e-3': no such key; did you mean 'optimizer\.learning_rate'"):
        load(f"{key}=1e-3")
