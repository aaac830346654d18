"""Numbers in the README and the documentation: tables are rendered from records, and numbers in prose are claims with a source."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs/results"))

import claims
import records
import regenerate
import rendering
from tables import PENDING, TABLES


def fails(page: Path, text: str) -> bool:
    """Whether a page with this text is not what records and claims say."""
    return rendering.rendered(page, text) != text or bool(claims.complaints_on(page.relative_to(ROOT).as_posix(), text))


def test_every_table_and_picture_is_what_its_record_says():
    assert [str(path) for path, _ in rendering.differing()] == []


def test_every_record_has_a_place_and_every_place_a_record_or_is_to_come():
    assert rendering.complaints() == []


def test_every_number_in_prose_has_a_source():
    assert claims.complaints() == []


def checked_numbers(text: str) -> list[re.Match[str]]:
    """Numbers with decimals, and figures in prose, that are not in code of the page's own, nor in a table that is to come."""
    to_come = [m.span() for m in rendering.MARK.finditer(text) if m[2] in PENDING]
    own = rendering.MARK.sub(blank, text)
    code = [m.span() for m in re.finditer(f"{claims._CODE.pattern}|`[^`]*`", own, claims._CODE.flags)]
    versions = [m.span() for m in claims._VERSION.finditer(text)]
    found = [*re.finditer(r"(?<![\w.])\d+\.\d+(?![\w.]*\w)", text), *claims.NUMBER.finditer(own)]
    return [m for m in found if not any(a <= m.start() < b for a, b in to_come + code + versions)]


def blank(found: re.Match[str]) -> str:
    return "." * len(found[0])


def off_by_one(number: str) -> str:
    """Another last digit, or another word."""
    digits = re.search(r"\d(?=\D*$)", number)
    if digits is None:
        return re.sub(r"^\w+", "eleven", number)
    return f"{number[: digits.start()]}{(int(digits[0]) + 1) % 10}{number[digits.end() :]}"


CHECKED = [page.relative_to(ROOT).as_posix() for page in rendering.pages()]
CHECKED = [name for name in CHECKED if not any(name.startswith(exempt) for exempt in claims.EXEMPT)]


@pytest.mark.parametrize("name", CHECKED)
def test_a_number_that_is_one_off_in_its_last_digit_is_found(name):
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    assert not fails(page, text)
    for number in checked_numbers(text):
        other = text[: number.start()] + off_by_one(number[0]) + text[number.end() :]
        assert fails(page, other), f"{number[0]} in {text[number.start() - 40 : number.end() + 40]!r}"


def test_many_numbers_are_tried():
    pages = ("README.md", "docs/results/images.md", "docs/what-we-found.md", "docs/scale.md", "docs/guide.md")
    for name in pages:
        assert len(checked_numbers((ROOT / name).read_text(encoding="utf-8"))) > 2, name


def test_a_number_without_a_claim_is_found():
    for words in (
        "It is 3.7 better.",
        "It takes 12 minutes.",
        "A gain of 4 %.",
        "It is 1.3x as fast.",
        "two hours",
        "±0.1",
        "It has 40 epochs and six seeds.",
        "Fifteen images are enough.",
        "Of 1,024 molecules",
        "12,500 pairs were rated.",
        "An encoder of width 96.",
        "Sixteen images are enough.",
    ):
        assert claims.complaints_on("docs/guide.md", f"{(ROOT / 'docs/guide.md').read_text()}\n\n{words}\n"), words


def test_a_claim_formats_what_its_reference_has():
    mean = records.quantity("demo: bn+bn@final, cls_linear_top1")
    gap = records.quantity("demo: bn+bn@final minus ln, cls_linear_top1")
    assert f"{mean:.2f}" == mean.text[:4] and f"{gap:verdict} {gap:seeds}" == "better 6"
    assert str(records.quantity("code sepnorm.report.verdict.COSINE").mean) == "0.5"
    for wrong in ("demo ~ none of this", "demo: no arm, cls_knn", "none"):
        with pytest.raises((LookupError, FileNotFoundError)):
            records.quantity(wrong)


def test_a_record_is_that_of_its_command(tmp_path):
    (tmp_path / "runs/ln-seed0").mkdir(parents=True)
    config = {"norm": "ln", "sites": "final", "num_cls": 1, "uniformity_weight": 0.0, "epochs": 6}
    config |= {"uniformity_form": "squared", "uniformity_on": "cls", "uniformity_within": "batch"}
    seeds = {str(seed): {"cls_linear_top1": 0.5 + seed / 100, "loss": 0.0} for seed in range(3)}
    arms = [{"name": "ln", "config": config, "seeds": seeds}]
    arms += [{"name": "bn+ln@final", "config": config | {"norm": "bn+ln"}, "seeds": seeds}]
    (tmp_path / "results.json").write_text(json.dumps({"most_seeds": None, "arms": arms}))
    words = "sepnorm compare images --norms ln,bn+ln@final --seeds 3 --set epochs=6"
    record = records.of_comparison(words, tmp_path)
    assert record["seeds"] == [0, 1, 2] and record["arms"]["ln"]["metrics"]["loss"] == [0.0, 0.0, 0.0]
    assert record["arms"]["bn+ln@final"]["settings"] == {"norm": "bn+ln"}
    for other in ("epochs=7", "epochs=6 --most 4", "epochs=6 --seeds auto"):
        wrong = words.replace("epochs=6", other)
        if other.endswith("auto"):
            wrong = wrong.replace("--seeds 3 ", "")
        if "most" not in other:
            with pytest.raises(SystemExit):
                records.of_comparison(wrong, tmp_path)
    with pytest.raises(SystemExit, match="arms"):
        records.of_comparison(words.replace("bn+ln", "bn"), tmp_path)
    config |= {"test": "/elsewhere/sets"}
    arms[1]["config"] |= {"test": "/elsewhere/sets"}
    (tmp_path / "results.json").write_text(json.dumps({"most_seeds": None, "arms": arms}))
    for place in (".", "sets", "data/sets"):  # files are told by name, and the folder of all of them may have any
        assert records.of_comparison(f"{words} --set test={place}", tmp_path)["seeds"] == [0, 1, 2]
    with pytest.raises(SystemExit, match="test"):
        records.of_comparison(f"{words} --set test=others", tmp_path)


def test_a_record_of_another_command_is_found(monkeypatch):
    other = json.loads((records.RECORDS / "lee.json").read_text()) | {"command": "sepnorm compare text --seeds 9"}
    kept = records.read
    monkeypatch.setattr(records, "read", lambda name: other if name == "lee" else kept(name))
    assert rendering.complaints() == ["lee has the record of another command: sepnorm compare text --seeds 9"]


def test_a_finished_folder_becomes_a_record_without_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(rendering, "render", list)
    monkeypatch.setattr(rendering, "complaints", list)
    monkeypatch.setattr(regenerate.subprocess, "run", None)  # a run would raise
    folder = tmp_path / "out/lee"
    folder.mkdir(parents=True)
    config = {key: records._default(key) for key in records._SETTINGS}
    seeds = {str(seed): {"cls_sts_average": 0.5} for seed in range(5)}
    arms = [{"name": name, "config": config, "seeds": seeds} for name in ("ln", "bn@final", "bn+ln@final")]
    (folder / "results.json").write_text(json.dumps({"most_seeds": None, "arms": arms}))
    monkeypatch.setattr(sys, "argv", ["regenerate.py", "lee", "--out", str(tmp_path / "out")])
    regenerate.main()
    assert json.loads((tmp_path / "records/lee.json").read_text())["command"] == TABLES["lee"].recorded
    for each in (records.read, records.comparison, records.quantity):
        each.cache_clear()


@pytest.fixture
def anew(tmp_path, monkeypatch):
    """Runs the script on records and runs in an empty folder; gives its exit code or sentence."""
    monkeypatch.setattr(records, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(rendering, "ROOT", tmp_path)
    monkeypatch.setattr(rendering, "render", list)
    monkeypatch.setattr(rendering, "complaints", list)

    def call(*words: str) -> str | None:
        monkeypatch.setattr(sys, "argv", ["regenerate.py", *words, "--out", str(tmp_path / "out")])
        try:
            regenerate.main()
        except SystemExit as error:
            return str(error)
        return None

    yield call
    for each in (records.read, records.comparison, records.quantity):
        each.cache_clear()


def test_a_command_that_writes_a_folder_runs_again_only_when_asked(tmp_path, anew, capfd):
    folder = tmp_path / "runs/compare-images-demo/runs/ln-seed0"
    folder.mkdir(parents=True)
    labels = np.arange(80) % 2
    vectors = np.random.default_rng(0).normal(size=(80, 4)) + 3 * labels[:, None]
    np.savez(folder / "embeddings.npz", cls=vectors.astype(np.float32), label=labels)
    found = []
    for words in (["demo-healing"], ["demo-healing", "--again"]):
        assert anew(*words) is None, capfd.readouterr()
        found.append(records.read("demo-healing"))
    assert found[0] == found[1] and found[0]["text"][0].startswith("runs/compare-images-demo/")
    assert not (tmp_path / "healed").exists()
    (folder / "embeddings.npz").unlink()  # nothing is read
    assert anew("demo-healing") is None and "--again" in capfd.readouterr().err
    record = found[0] | {"where": found[0]["where"].replace("sepnorm ", "sepnorm 0.")}
    records.write("demo-healing", record)
    assert "demo-healing" in anew("demo-healing")  # of another version: it is run, and fails


def test_differences_between_poolings_are_bold_where_their_interval_leaves_out_0():
    assert records.within("lee", "ln", "mean_sts_average", "cls_sts_average") == "+0.008 ± 0.009"
    assert records.within("lee", "bn+ln@final", "mean_sts_average", "cls_sts_average") == "**+0.025 ± 0.005**"


def test_a_table_that_fails_is_named_and_does_not_end_the_others(anew, monkeypatch, capfd):
    def run(name, table, words, out):
        if name == "bench":
            raise SystemExit("its command ended with code 3.")
        return records.of_text(table.recorded, records.here(), name)

    monkeypatch.setattr(regenerate, "run", run)
    assert anew("bench", "decisions") == "1 of the tables failed, for the reasons above: bench."
    assert "bench has failed: its command ended with code 3." in capfd.readouterr().err
    assert records.names() == ["decisions"]


def test_a_command_is_wrapped_without_a_change():
    for table in TABLES.values():
        words = rendering.command(table.command)
        assert " ".join(words.replace("\\\n", " ").split()[1:-1]) == table.command


def test_a_table_to_come_shows_the_command_of_today_and_an_older_table_its_own(monkeypatch):
    monkeypatch.setattr(rendering, "PENDING", {"cifar10"})
    monkeypatch.setattr(records, "names", list)
    begins, text = "<!-- record cifar10 -->\n", f"\n{rendering.NOT_YET}\n\n```bash\nsepnorm compare images\n```\n\n"
    page = ROOT / "docs/results/images.md"
    shown = rendering.rendered(page, f"{begins}{text}<!-- end -->")
    assert rendering.command(TABLES["cifar10"].command) in shown and rendering.NOT_YET in shown
    old = f"{begins}{text}| arm |\n|---|\n| ln |\n\n<!-- end -->"
    assert rendering.rendered(page, old) == old


def test_what_the_readmes_code_prints_is_shown_below_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    shown = 0
    blocks = r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?"
    for code, output in re.findall(blocks, (ROOT / "README.md").read_text(), flags=re.DOTALL):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), scope)
        if output:
            shown += 1
            assert [line.rstrip() for line in printed.getvalue().splitlines()] == output.splitlines()
    assert shown
