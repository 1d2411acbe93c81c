"""Identification and verification against a full similarity matrix and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

import engine.evaluation.identification
from engine.evaluation.arrays import FloatArray
from engine.evaluation.identification import match
from engine.options import UserError


def make_embeddings(num_patients: int, noise: float, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    random = np.random.default_rng(seed)
    centers = random.normal(size=(num_patients, 6))
    return tuple(centers + noise * random.normal(size=centers.shape) for _ in range(2))  # type: ignore[return-value] # two


@pytest.fixture(params=[1 << 24, 100], ids=["one-block", "blocks-of-2-probes"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.evaluation.identification, "_BLOCK_ELEMENTS", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("noise", [0.1, 0.7, 3.0])
@pytest.mark.parametrize("digits", [None, 1])
def test_equals_the_whole_matrix(noise: float, digits: int | None) -> None:
    probes, gallery = make_embeddings(40, noise)
    if digits is not None:  # few distinct vectors, so similarities are tied
        probes, gallery = (np.sign(np.round(values, digits)) for values in (probes, gallery))
    owners = np.array([f"patient {i % 37}" for i in range(40)])  # three patients with two entries each
    result = match(probes, gallery, owners, owners)

    similarities = probes @ gallery.T / np.linalg.norm(probes, axis=1)[:, None] / np.linalg.norm(gallery, axis=1)
    similarities = np.round(similarities, 12)
    same = owners[:, None] == owners
    ranks = [1 + sum(row[~own] >= row[own].max() - 1e-9) for row, own in zip(similarities, same, strict=True)]
    assert result.ranks.tolist() == ranks
    assert result.rank_accuracy(1) == np.mean(np.array(ranks) == 1)
    if digits is not None:
        return  # rounding may split ties of the matrix product
    assert result.auroc() == pytest.approx(roc_auc_score(same.ravel(), similarities.ravel()), rel=1e-12)
    false_rates, true_rates, _ = roc_curve(same.ravel(), similarities.ravel(), drop_intermediate=False)
    for limit in (0.0, 1e-2, 0.3, 1.0):
        assert result.true_acceptance(limit) == true_rates[false_rates <= limit].max()
    grid = np.linspace(0, 1, 200_001)
    gap = np.abs(1 - np.interp(grid, false_rates, true_rates) - grid)
    assert result.equal_error_rate() == pytest.approx(grid[gap.argmin()], abs=1e-3)


def test_hand_computed_verification_with_ties() -> None:
    axes = np.eye(4)
    # Similarities: genuine 1, 1, 0; impostors: one of 1, five of 0.
    result = match(axes[[0, 1, 1]], axes[[0, 1, 2]], ["a", "b", "c"], ["a", "b", "c"])
    assert result.genuine.tolist() == [1, 1, 0]
    assert result.num_impostors == 6
    assert result.ranks.tolist() == [1, 1, 3]
    assert result.auroc() == pytest.approx((2 * 5.5 + 2.5) / 18)
    assert [result.true_acceptance(rate) for rate in (0, 1 / 6, 0.9, 1)] == [0, pytest.approx(2 / 3), pytest.approx(2 / 3), 1]
    # From (false, miss) = (1/6, 1/3) the curve falls straight to (1, 0).
    assert result.equal_error_rate() == pytest.approx(2 / 7)


def test_expected_accuracy_in_smaller_galleries() -> None:
    probes, gallery = make_embeddings(12, noise=1.0)
    result = match(probes, gallery, range(12), range(12))
    random = np.random.default_rng(0)
    for k, num_others in ((1, 4), (2, 7)):
        hits = []
        for _ in range(600):
            probe = int(random.integers(12))
            others = np.setdiff1d(np.arange(12), [probe])
            drawn = np.r_[probe, random.choice(others, num_others, replace=False)]
            hits.append(match(probes[[probe]], gallery[drawn], [probe], drawn).rank_accuracy(k))
        assert result.rank_accuracy(k, num_others) == pytest.approx(np.mean(hits), abs=0.06)
        assert result.rank_accuracy(k) < result.rank_accuracy(k, num_others) < 1
    assert result.rank_accuracy(1, 11) == pytest.approx(result.rank_accuracy(1))
    assert result.rank_accuracy(1, 0) == 1
    with pytest.raises(UserError, match="cannot draw 12 entries of other patients: there are only 11"):
        result.rank_accuracy(1, 12)


def test_points_of_the_roc_curve_lie_on_that_of_scikit_learn() -> None:
    probes, gallery = make_embeddings(30, noise=1.0)
    result = match(probes, gallery, range(30), range(30))
    false_rates, true_rates = result.roc()
    similarities = (probes / np.linalg.norm(probes, axis=1)[:, None]) @ (gallery / np.linalg.norm(gallery, axis=1)[:, None]).T
    expected = roc_curve(np.eye(30).ravel(), similarities.ravel(), drop_intermediate=False)
    points = set(zip(np.round(expected[0], 9), np.round(expected[1], 9), strict=True))
    assert set(zip(np.round(false_rates, 9), np.round(true_rates, 9), strict=True)) <= points
    assert np.trapezoid(true_rates, false_rates) == pytest.approx(result.auroc())


def test_perfect_embeddings() -> None:
    axes = np.eye(5, dtype=np.float32)
    result = match(axes, 3 * axes, range(5), range(5))
    assert result.ranks.tolist() == [1] * 5
    assert (result.auroc(), result.equal_error_rate(), result.true_acceptance(0.0)) == (1, 0, 1)


def test_collapsed_embeddings_identify_nobody() -> None:
    result = match(np.ones((6, 4)), np.ones((6, 4)), range(6), range(6))
    assert result.ranks.tolist() == [6] * 6
    assert result.rank_accuracy(1) == 0
    assert result.auroc() == pytest.approx(0.5)
    assert result.equal_error_rate() == pytest.approx(0.5)


def test_a_gallery_of_one_patient_has_no_impostors() -> None:
    result = match(np.ones((1, 2)), np.ones((1, 2)), ["a"], ["a"])
    assert result.rank_accuracy(1) == result.rank_accuracy(1, 0) == 1
    assert np.isnan(result.auroc())
    assert np.isnan(result.equal_error_rate())


@pytest.mark.parametrize(
    ("probes", "gallery", "patients", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), ["a", "z"], "1 patient of the probes is not in the gallery: z"),
        (np.ones((2, 3)), np.ones((2, 4)), ["a", "b"], "probes have 3 dimensions, the gallery has 4"),
        (np.zeros((2, 3)), np.ones((2, 3)), ["a", "b"], "probe embeddings contain NaN, infinity or a zero vector"),
        (np.ones(3), np.ones((2, 3)), ["a", "b"], r"expected probe embeddings \[samples, dimensions\], got shape \(3,\)"),
    ],
)
def test_mistakes(probes: FloatArray, gallery: FloatArray, patients: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        match(probes, gallery, patients, ["a", "b"])
