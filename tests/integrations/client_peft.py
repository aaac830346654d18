"""peft: LoRA, tuned norms, adapters that are switched off or merged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from client import ROOT, Case, Out, converted, hidden, train

sys.path.append(str(ROOT / ".peft"))


def _adapted(folder: Path, **options: Any) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    from sepnorm.integrations.peft import keep_norms

    converted().save_pretrained(folder / "base")
    base = AutoModel.from_pretrained(folder / "base")
    config = LoraConfig(target_modules=["query"], init_lora_weights=False, **options)
    model = get_peft_model(base, config if options else keep_norms(base, config))
    train(model)
    return model


def lora(folder: Path) -> Out:
    model = _adapted(folder)
    model.save_pretrained(folder / "adapter")
    return hidden(model)


def cls_norm(folder: Path) -> Out:
    """Only the norm of [CLS] is trained beside LoRA."""
    model = _adapted(folder, modules_to_save=["cls_norm"])
    model.save_pretrained(folder / "adapter")
    return hidden(model)


def tuned_norms(folder: Path) -> Out:
    from peft import LNTuningConfig, get_peft_model
    from transformers import AutoModel

    converted().save_pretrained(folder / "base")
    base = AutoModel.from_pretrained(folder / "base")
    model = get_peft_model(base, LNTuningConfig(target_modules=["cls_norm", "token_norm"]))
    train(model)
    model.save_pretrained(folder / "adapter")
    return hidden(model)


def auto(folder: Path) -> Out:
    from peft import AutoPeftModel

    return hidden(AutoPeftModel.from_pretrained(folder / "adapter"))


def merged(folder: Path) -> Out:
    model = _adapted(folder)
    expected = hidden(model)
    whole = model.merge_and_unload()
    whole.save_pretrained(folder / "merged")
    del expected
    return hidden(whole)


def merged_alone(folder: Path) -> Out:
    from transformers import AutoModel

    return hidden(AutoModel.from_pretrained(folder / "merged"))


def base(folder: Path) -> Out:
    """The base that an adapter was trained on, before it was."""
    lora(folder)
    return hidden(converted())


def switched_off(folder: Path) -> Out:
    from peft import AutoPeftModel

    model = AutoPeftModel.from_pretrained(folder / "adapter")

    def out(batch: Any) -> Any:
        with model.disable_adapter():
            return hidden(model)(batch)

    return out


CASES = {
    "LoRA, AutoPeftModel": Case(lora, auto),
    "LoRA and cls_norm alone": Case(cls_norm, auto),
    "LN tuning": Case(tuned_norms, auto),
    "LoRA, merged": Case(merged, merged_alone),
    "LoRA, disable_adapter": Case(base, switched_off),
}
