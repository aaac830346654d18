"""Embed the molecules of a table's SMILES column, and find the most similar ones.

    python embed_smiles.py MODEL TABLE

MODEL is the folder of a run (`sepnorm pretrain molecules`), TABLE a .csv or .parquet file. Without them, a small
Graphormer is trained for seconds on molecules that come with RDKit, and embeds the table below. Prints each molecule
with its nearest neighbour, and how many rows were invalid.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet

from sepnorm.domains.embedding import write_embeddings
from sepnorm.domains.pretraining import pretrain

MOLECULES = {
    "ethanol": "CCO", "propanol": "CCCO", "butanol": "CCCCO", "benzene": "c1ccccc1", "toluene": "Cc1ccccc1",
    "phenol": "Oc1ccccc1", "aspirin": "CC(=O)Oc1ccccc1C(=O)O", "salicylic acid": "Oc1ccccc1C(=O)O",
    "glycine": "NCC(=O)O", "alanine": "CC(N)C(=O)O", "a slip of the pen": "C1CC",
}  # fmt: skip


def train() -> str:
    settings = {"task": "pretrain", "norm": "bn+ln", "molecules": 500, "max_steps": 30}
    run = pretrain("molecules", "demo", settings, folder=Path("run"))
    return str(run.folder)


def make_table(path: Path) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("name", "smiles"), *MOLECULES.items()])
    return str(path)


def main() -> None:
    model, table = sys.argv[1:] if len(sys.argv) > 1 else (train(), make_table(Path("molecules.csv")))
    out = Path("embeddings.parquet")
    written = write_embeddings(model, table, out, column="smiles")  # column= is needed only if several fit
    print(f"{written.count} molecules, {written.dim} dimensions, {written.left_out} left out")

    found = pyarrow.parquet.read_table(out)  # name (the SMILES) and embedding, in the order of the table
    smiles, vectors = found["name"].to_pylist(), np.array(found["embedding"].to_pylist())
    vectors -= vectors.mean(0)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -1)
    for row, nearest in enumerate(cosines.argmax(1)[:20]):
        print(f"{smiles[row]:25} {cosines[row, nearest]:.2f}  {smiles[nearest]}")


if __name__ == "__main__":
    main()
