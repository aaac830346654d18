from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from models import bert, embeddings, sentences

import sepnorm
from sepnorm import SepNormError

FINAL = "encoder.layer.1.output.LayerNorm"


def test_figures_equal_a_direct_computation():
    model = bert()
    data = [sentences(8), sentences(5)]
    seen = []
    hook = model.get_submodule(FINAL).register_forward_pre_hook(lambda module, args: seen.append(args[0].double()))
    with torch.no_grad():
        for batch in data:
            model(**batch)
    hook.remove()
    found = {site.path: site for site in sepnorm.inspect(model, data).sites}[FINAL]
    x, keep = torch.cat(seen), torch.cat([batch["attention_mask"] for batch in data]).bool()
    cls, tokens = x[:, 0], x[:, 1:][keep[:, 1:]]
    for part, rows in ((found.cls, cls), (found.tokens, tokens)):
        unit = F.normalize(rows, dim=1)
        pairs = unit @ unit.T
        n = len(rows)
        assert part.count == n
        assert part.mean == pytest.approx(rows.mean().item(), rel=1e-6)
        assert part.variance == pytest.approx(rows.var(0).mean().item(), rel=1e-6)
        assert part.norm == pytest.approx(rows.norm(dim=1).mean().item(), rel=1e-6)
        assert part.cosine == pytest.approx(((pairs.sum() - pairs.trace()) / (n * (n - 1))).item(), rel=1e-6)
    cosines = [F.cosine_similarity(a[:1], a[1:][k[1:]]).mean() for a, k in zip(x, keep, strict=True)]
    assert found.cls_token_cosine == pytest.approx(torch.stack(cosines).mean().item(), rel=1e-6)
    assert found.discrepancy is None


def test_degenerate_sites_and_discrepancy_of_statistics():
    model = bert()
    data = [sentences(32)]
    sepnorm.convert(model, "bn+ln", calibrate=data, sites="all")
    twin = copy.deepcopy(model)
    inspection = sepnorm.inspect(model, data)
    sites = {site.path: site for site in inspection.sites}
    assert [path for path, site in sites.items() if site.degenerate] == ["embeddings.LayerNorm"]
    assert sites["embeddings.LayerNorm"].cls.variance < 1e-12
    assert sites[FINAL].norm == "bn+ln"
    calibrated = sites[FINAL].discrepancy
    model.get_submodule(FINAL).cls_norm.running_mean += 5
    off = {site.path: site for site in sepnorm.inspect(model, data).sites}[FINAL].discrepancy
    assert calibrated < 0.3 < off
    assert str(inspection).count("\n") == 6
    assert inspection.as_dicts()[0]["cls"]["count"] == 32
    batch = sentences()  # looking changes nothing
    model.get_submodule(FINAL).cls_norm.running_mean.copy_(twin.get_submodule(FINAL).cls_norm.running_mean)
    assert torch.equal(embeddings(model, batch), embeddings(twin, batch))
    hooks = [[len(m._forward_pre_hooks) + len(m._forward_hooks) for m in each.modules()] for each in (model, twin)]
    assert hooks[0] == hooks[1]


def test_no_data_is_refused():
    with pytest.raises(SepNormError, match="at least two samples, but the data gave 0"):
        sepnorm.inspect(bert(), [])
