"""A hundred wrong command lines: each is refused in one sentence that says what is wrong, with its exit code, and at once."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import transformers as T
from models import text_model

USAGE, REFUSED = 2, 1  # exit codes: of typer for words it does not know, and ours
SECONDS = 2.0  # of CPU time, for a refusal

#: Words of a command, and what must be said of them. Everything happens in the folder of ``place``.
WRONG: list[tuple[str, str]] = [
    # ---- norms, sites and arms
    ("compare images --norms ln", "at least two arms"),
    ("compare images --norms ln,ln", "arms must differ"),
    ("compare images --norms ln,bm+ln", "unknown norm 'bm'"),
    ("compare images --norms ln,bn-ln", "Did you mean 'bn+ln'?"),
    ("compare images --norms ln,bn_ln", "Did you mean 'bn+ln'?"),
    ("compare images --norms ln,bn+", "a norm is written like 'bn+ln'"),
    ("compare images --norms ln,bn+ln+ln", "a norm is written like 'bn+ln'"),
    ("compare images --norms ln,bn+ln@last", "Did you mean 'final'?"),
    ("compare images --norms ln,bn+ln@", "no sites were named"),
    ("compare text --norms ln,bn+ln@fnal", "Did you mean 'final'?"),
    ("compare molecules --norms ln,bn+ln@block", "Did you mean 'blocks'?"),
    ("compare images --norms ln,bn --lambdas much", "--lambdas must be numbers"),
    ("compare images --norms ln,bn --targets cls", "give both"),
    ("compare images --norms ln,bn --lambdas 1 --targets heads", "uniformity_on"),
    ("compare images --norms ln,bn --lambdas -1", "uniformity_weight"),
    ("pretrain images --norm bn+ln@all --sites final", "sites are given twice"),
    ("pretrain images --norm bn-ln", "Did you mean 'bn+ln'?"),
    ("pretrain images --sites last", "Did you mean 'final'?"),
    ("convert model --data lines.txt --out o --norm bn_ln", "Did you mean 'bn+ln'?"),
    ("convert model --data lines.txt --out o --sites last", "Did you mean 'final'?"),
    # ---- scores
    ("compare scores scores.csv --higher acc --norms bn,ln", "--norms has no effect with scores"),
    ("compare scores scores.csv --higher acc --margin inf", "--margin is a finite number of at least 0, found inf"),
    ("compare images --margin inf", "--margin is a finite number of at least 0, found inf"),
    ("compare scores scores.csv --higher acc --dry-run", "--dry-run has no effect with scores"),
    ("compare scores scores.csv --higher acc --lower loss,acc", "acc is named by --higher and by --lower"),
    # ---- settings
    ("pretrain images --norm bn+ln --set norm=ln", "norm is given twice"),
    ("pretrain images --sites all --set sites=final", "sites is given twice"),
    ("pretrain images --seed 1 --set seed=2", "seed is given twice"),
    ("pretrain images --max-steps 3 --set max_steps=4", "max_steps is given twice"),
    ("pretrain text --data lines.txt --set data=other.txt", "data is given twice"),
    ("compare images --set norm=bn", "arms are named by --norms"),
    ("compare images --set seed=3", "seeds are counted by --seeds"),
    ("compare images --lambdas 0,1 --set uniformity_weight=3", "--lambdas and --targets say it"),
    ("compare images --set widht=64", "Did you mean 'width'?"),
    ("compare images --set width", "a setting is written key=value"),
    ("compare images --set =3", "a setting is written key=value"),
    ("compare images --set width=many", "width='many'"),
    ("compare images --set batch_size=0", "batch_size=0"),
    ("compare images --set learning_rate=-1", "learning_rate=-1"),
    ("compare images --set heads=7", "cannot be divided among 7 heads"),
    ("compare images --set image_size=9", "cannot be cut into patches"),
    ("compare images --set mask_ratio=0.999", "leaves none visible"),
    ("compare images --set precision=half", "precision='half'"),
    ("compare images --set device=gpu", "device='gpu'"),
    ("compare images --set sharded=true", "each run of a comparison has one: leave it out"),
    ("compare images --set sharded=true --launcher ray", "each run of a comparison has one: leave it out"),
    ("study sites --set sharded=true", "each run of a comparison has one: leave it out"),
    ("compare text --set num_cls=2", "is for images"),
    ("compare molecules --test rated.csv", "add --set task=pretrain"),
    ("compare images --test rated.csv", "--test is not for images"),
    ("compare images --preset huge", "unknown preset 'huge'"),
    ("compare images --preset smal", "Did you mean 'small'?"),
    ("compare pictures", "unknown domain 'pictures'"),
    ("compare image", "Did you mean 'images'?"),
    ("presets image", "Did you mean 'images'?"),
    ("compare images --seeds auto --most 2", "--most is a number from 3 to 100, found 2"),
    ("compare images --config nowhere.json", "there is no file nowhere.json"),
    ("compare images --config lines.txt", "cannot be read as JSON"),
    ("compare images --config list.json", "holds no settings"),
    ("compare images --config text.json", "is no config of images"),
    ("compare images --config text.json --preset demo", "not both: each sets everything"),
    ("compare images --launcher slurm", "unknown launcher 'slurm'"),
    ("compare images --launcher localx=3", "unknown launcher"),
    # ---- data
    ("compare images --data ./missing", "there is no file or folder ./missing."),
    ("compare images --data pictures/c", "there is no file or folder pictures/c"),
    ("compare images --data ./pictuers", "Did you mean 'pictures'?"),
    ("compare images --data empty", "holds no image"),
    ("compare images --data lines.txt", "is no table of images"),
    ("compare images --data broken", "5 of 6 images of broken cannot be read"),
    ("compare images --data one", "all 16 training images have one class, 'a'"),
    ("compare images --data half", "neither test nor val beside it"),
    ("compare images --data texts.csv", "no column of texts.csv looks like images"),
    ("compare text --data pictures", "pictures is a folder of images, and texts are wanted"),
    ("compare images --data pictures --data-x 1", "--data"),
    ("compare images pictures", "compare images takes no TABLE: write --data pictures."),
    ("compare images --data nobody/none", "there is no file or folder nobody/none here. It was looked up on"),
    ("pretrain images --data /nowhere/at/all", "there is no file or folder"),
    ("pretrain images --data missing.parquet", "there is no file or folder missing.parquet"),
    ("compare text --data missing.txt", "there is no file missing.txt"),
    ("compare text --data texts.csv --column nope", "texts.csv has no column 'nope'"),
    ("compare text --data two.csv", "which column of two.csv holds the text is not clear"),
    ("pretrain text --data two.csv", "name it by --column"),
    ("compare text --data few.txt", "20 or more are needed"),
    ("compare text --data nothing.txt", "nothing.txt holds no sentence"),
    ("compare text --data pictures/a/00.png", "is no text file or table"),
    ("compare text --test missing.csv", "there is no file or folder missing.csv"),
    ("compare text --test texts.csv", "a set needs sentence1, sentence2 and score"),
    ("compare text --set on=stsx", "unknown evaluation set 'stsx'"),
    ("compare text --set model=./nowhere", "there is no model ./nowhere"),
    ("compare text --set model=pictures", "holds no model"),
    ("compare text --set model=nobody/none", "there is no file or folder nobody/none here. It was looked up on"),
    ("compare molecules --data missing.csv", "there is no file or folder missing.csv"),
    ("compare molecules --data texts.csv", "holds SMILES is not clear"),
    ("compare molecules --data rated.csv --set targets=z", "rated.csv has no column 'z'"),
    ("pretrain molecules --data rated.csv --column mol", "rated.csv has no column 'mol'"),
    ("pretrain molecules --data nothing.smi", "nothing.smi holds no rows"),
    # ---- commands on models
    ("embed ./nope lines.txt --out e.npy", "there is no model ./nope"),
    ("embed model missing.txt --out e.npy", "there is no file or folder missing.txt"),
    ("embed model lines.txt --out e.txt", "embeddings are written to .parquet or .npy"),
    ("embed model lines.txt --out e.npy --pooling max", "unknown pooling 'max'"),
    ("embed model lines.txt --out lines.txt/e.npy", "cannot be made"),
    ("embed model lines.txt", "--out"),
    ("embed weights.pt lines.txt --out e.npy", "a file of weights does not define a model"),
    ("embed nobody/none lines.txt --out e.npy", "which cannot be reached, and it is not in the hub's cache"),
    ("embed t5 lines.txt --out e.npy", "is an encoder-decoder model"),
    ("embed pictures lines.txt --out e.npy", "pictures holds no model"),
    ("diagnose missing.pt", "there is no file missing.pt"),
    ("diagnose missing.npy", "there is no file missing.npy"),
    ("diagnose texts.csv", "texts.csv holds texts (number, text) and no embeddings"),
    ("diagnose two.csv --column nope", "no column 'nope'"),
    ("diagnose e.npy --data lines.txt", "leave out --data, which is for models"),
    ("diagnose e.npy --max-samples 1", "max_samples must be at least 2"),
    ("diagnose model", "which needs data: add --data"),
    ("diagnose model --data missing.txt", "there is no file or folder missing.txt"),
    ("diagnose model --data lines.txt --label x", "--label is only for files of embeddings"),
    ("diagnose lines.txt --data lines.txt", "is neither a model's folder nor a file of embeddings"),
    ("evaluate ./nope", "there is no model ./nope"),
    ("evaluate model --pooling max", "unknown pooling 'max'"),
    ("evaluate model --pooling cls,moment", "unknown pooling 'moment'"),
    ("evaluate model --data missing.csv", "there is no file or folder missing.csv"),
    ("evaluate model --data lines.txt", "models of text are scored on rated pairs"),
    ("convert model --data pictures --out o", "pictures is a folder of images, and texts are wanted"),
    ("embed vit broken --out e2.npy", "5 of 6 images of broken cannot be read"),
    ("embed vit texts.csv --out e2.npy", "no column of texts.csv looks like images"),
    ("embed model lines.txt --out e2.npy --device gpu", "there is no device 'gpu'"),
    ("evaluate comparison", "holds a whole comparison: name the folder of one of its runs"),
    ("convert model --data lines.txt --out pictures", "already exists and is not empty"),
    ("convert model --data ./missing --out o", "there is no file or folder ./missing"),
    ("convert model --data lines.txt --out o --max-samples 0", "--max-samples"),
    ("export model --out m.pt", "a model is exported to a .onnx file"),
    ("export ./nope --out m.onnx", "there is no model ./nope"),
    # ---- studies
    ("reproduce table9", "Did you mean 'table"),
    ("reproduce sites", "It is one of our own: sepnorm study."),
    ("study table1", "It is the paper's: sepnorm reproduce."),
    ("study sites --data x", "--data of a study names a copy of some of its data, as cifar10=PATH, found 'x'"),
    ("study sites --data cifar10=./x", "there is no file or folder ./x"),
    ("study sites --scale small --data mnist=pictures", "--data names 'mnist'"),
    ("study sites --scale tiny", "unknown scale 'tiny'"),
    ("study sites --set widht=3", "Did you mean 'width'?"),
    ("reproduce table1 --seeds 0", "--seeds"),
    # ---- words that no command has
    ("compar images", "compare"),
    ("compare images --norm ln,bn", "--norms"),
    ("compare images --seeds many", "--seeds"),
    ("compare", "domain"),
    ("pretrain text --colum x", "--column"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with data and models, good and bad."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("place")
    rng = np.random.default_rng(0)

    def draw(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(path)

    for number in range(20):
        draw(folder / "pictures" / "ab"[number % 2] / f"{number:02}.png")
        draw(folder / "one" / "a" / f"{number:02}.png")
    draw(folder / "half/train/a/0.png")
    draw(folder / "broken/0.png")
    for number in range(1, 6):
        (folder / f"broken/{number}.png").write_bytes(b"no image")
    (folder / "empty").mkdir()
    (folder / "lines.txt").write_text("\n".join(f"the cat sat on mat {i}" for i in range(40)))
    (folder / "few.txt").write_text("a\nb\nc\n")
    (folder / "nothing.txt").write_text("\n\n")
    (folder / "nothing.smi").write_text("")
    (folder / "texts.csv").write_text("number,text\n" + "".join(f"{i},the cat {i}\n" for i in range(40)))
    (folder / "two.csv").write_text("one,two\n" + "".join(f"a {i},b {i}\n" for i in range(40)))
    (folder / "rated.csv").write_text("smiles,y\n" + "".join(f"{'C' * i}O,{i}\n" for i in range(1, 30)))
    (folder / "list.json").write_text("[1]")
    (folder / "text.json").write_text(json.dumps({"data": "lee", "temperature": 1, "epochs": 1, "batch_size": 4}))
    (folder / "weights.pt").write_bytes(b"x")
    (folder / "t5").mkdir()
    (folder / "t5/config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    (folder / "comparison/runs").mkdir(parents=True)
    (folder / "comparison/results.json").write_text("{}")
    np.save(folder / "e.npy", rng.standard_normal((9, 4)))
    text_model(folder / "model")
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    T.ViTModel(T.ViTConfig(**sizes, image_size=8, patch_size=4)).save_pretrained(folder / "vit")
    return folder


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_there_are_a_hundred():
    assert len({line for line, _ in WRONG}) == len(WRONG) >= 100


@pytest.mark.parametrize(("line", "said"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_command_line_is_refused_in_one_sentence_and_at_once(run, place, monkeypatch, line, said):
    monkeypatch.chdir(place)
    before = names_below(place)
    begun = time.process_time()
    code, out, err = run(*line.split())
    taken = time.process_time() - begun
    assert out == "" and said in err, err
    assert "Traceback" not in err
    if code == REFUSED:
        errors = [each for each in err.splitlines() if each.startswith("Error: ")]
        assert len(errors) == 1 and err.splitlines()[-1] == errors[0]
    else:
        assert code == USAGE
    assert taken < SECONDS, f"{taken:.1f} s"
    assert names_below(place) == before, "something was left behind"


@pytest.mark.parametrize(
    "line",
    [
        "compare images --norms ln,bn+ln@last",
        "compare images --data ./missing",
        "compare images --data nobody/none",
        "compare text --data texts.csv --column nope",
        "compare molecules --data missing.csv",
        "reproduce table9",
        "study sites --data x",
        "embed nobody/none lines.txt --out e.npy",
        "diagnose texts.csv",
        "convert model --data ./missing --out o",
    ],
)
def test_a_process_of_its_own_refuses_as_fast(place, line):
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = subprocess.run(
        [sys.executable, "-m", "sepnorm", *line.split()], cwd=place, capture_output=True, text=True, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert found.returncode == REFUSED and dict(WRONG)[line] in found.stderr, found.stderr
    assert taken < SECONDS, f"{taken:.1f} s"


def test_help_answers_within_a_second():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "sepnorm", "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
