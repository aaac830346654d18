"""The paper's figures (Chen et al., NeurIPS 2023), in per cent unless noted; it has neither seeds nor intervals."""

from __future__ import annotations

#: Table 1: linear probes of MAE, ViT-Base.
IMAGES = (
    ["published", "STL10 top-1", "top-5", "Aircraft top-1", "top-5", "SVHN top-1", "top-5", "Flowers top-1", "top-5"],
    [
        ["ShareNorm", "92.01", "99.5", "52.54", "84.16", "88.97", "99.13", "27.63", "53.73"],
        ["SepNorm", "93.84", "99.7", "59.02", "86.65", "89.18", "99.21", "32.51", "60.92"],
    ],
)

#: Table 2: uniformity of [CLS] / of tokens.
UNIFORMITY = (
    ["published", "ln", "bn", "ln+ln", "ln+bn", "bn+ln", "bn+bn"],
    [
        ["STL10", "-2.59 / -3.50", "-2.95 / -3.68", "-1.10 / -3.37", "-1.32 / -3.37", "-3.44 / -3.38", "-3.48 / -3.48"],
        [
            "Aircraft",
            "-0.91 / -3.35",
            "-1.53 / -3.37",
            "-1.69 / -3.36",
            "-1.96 / -3.51",
            "-2.77 / -3.31",
            "-2.98 / -3.73",
        ],
    ],
)

#: Table 3: Spearman of SimCSE on seven sets, and the average of seven transfer tasks.
TEXT = (
    ["published", "STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R", "average", "transfer"],
    [
        [
            "BERT, unsupervised, ShareNorm",
            "65.28",
            "78.82",
            "69.65",
            "79.02",
            "77.21",
            "76.40",
            "71.74",
            "74.04",
            "86.36",
        ],
        [
            "BERT, unsupervised, SepNorm",
            "67.01",
            "82.16",
            "72.48",
            "81.38",
            "79.11",
            "77.56",
            "71.36",
            "75.87",
            "86.14",
        ],
        [
            "RoBERTa, unsupervised, ShareNorm",
            "68.25",
            "81.24",
            "72.78",
            "81.38",
            "80.31",
            "79.83",
            "68.16",
            "76.00",
            "87.61",
        ],
        [
            "RoBERTa, unsupervised, SepNorm",
            "66.63",
            "82.40",
            "74.47",
            "82.39",
            "80.44",
            "81.14",
            "69.44",
            "76.70",
            "88.37",
        ],
        ["BERT, supervised, ShareNorm", "77.72", "81.07", "78.97", "85.15", "82.00", "82.36", "79.74", "81.00", ""],
        ["BERT, supervised, SepNorm", "75.32", "84.41", "79.94", "84.91", "80.87", "83.63", "79.61", "81.23", ""],
        ["RoBERTa, supervised, ShareNorm", "77.38", "80.87", "78.72", "84.02", "82.56", "83.08", "78.25", "80.70", ""],
        ["RoBERTa, supervised, SepNorm", "75.80", "84.94", "80.33", "85.51", "82.11", "84.88", "79.72", "81.90", ""],
    ],
)

#: Table 4: Graphormer; mean absolute errors, and the area under the curve in per cent.
MOLECULES = (
    ["published", "ZINC, MAE", "ZINC-12k, MAE", "MolHIV, ROC AUC"],
    [["ShareNorm", "0.069", "0.164", "73.36"], ["SepNorm", "0.052", "0.144", "75.64"]],
)

#: Figure 5: accuracy on STL10 for lambda 0, and for 0.01 / 0.1 / 1 on tokens, on [CLS] and on both.
LAMBDA = (
    ["published, STL10", "λ=0", "on tokens", "on [CLS]", "on both"],
    [
        ["bn+bn", "93.84", "93.65 / 94.15 / 93.94", "93.73 / 93.85 / 93.93", "93.40 / 94.25 / 94.28"],
        ["bn+ln", "92.80", "92.98 / 93.60 / 94.30", "92.98 / 93.48 / 93.36", "92.74 / 93.18 / 94.40"],
        ["bn", "92.84", "92.48 / 93.38 / 92.78", "93.10 / 93.33 / 92.93", "93.41 / 93.46 / 92.99"],
        ["ln", "92.01", "92.61 / 92.74 / 92.14", "92.28 / 92.75 / 92.36", "92.74 / 92.38 / 92.74"],
    ],
)
