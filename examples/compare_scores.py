"""Compare scores that you already have: a table of arms and seeds in, a verdict and a page out."""

from pathlib import Path

from sepnorm.domains.scores import compare_scores

ROWS = """arm,seed,accuracy
shared,0,0.812
shared,1,0.825
shared,2,0.809
shared,3,0.818
separate,0,0.831
separate,1,0.846
separate,2,0.825
separate,3,0.835
"""

if __name__ == "__main__":
    Path("scores.csv").write_text(ROWS)
    found, page = compare_scores("scores.csv", "runs/scores", {"accuracy": True})
    decision = found.decisions()["separate"]
    print(f"separate minus shared: {decision} ({decision.verdict})")
    print(f"Page: {page}")
