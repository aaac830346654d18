"""Reads published checkpoints: folders of transformers 4, and pickled weights, which are not unpickled."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from sepnorm.data.torch_files import ARRAYS, Made, stored
from sepnorm.domains.molecules.published.config import FIXED, PublishedConfig
from sepnorm.errors import SepNormError, one_line
from sepnorm.files import DAMAGE
from sepnorm.surgery.opening.settings import read_named, regular, vet_size, weight_files
from sepnorm.surgery.opening.sizes import Size, require_fitting

#: The published models on the Hub, by their names in papers and documentation.
KNOWN = {f"graphormer-base-pcqm4m{version}": f"clefourrier/graphormer-base-pcqm4m{version}" for version in ("v1", "v2")}
_PICKLED = "pytorch_model.bin"
#: Microsoft's names of weights that differ, with the names of transformers.
_RENAMED = {
    "encoder.embed_out.weight": "classifier.classifier.weight",
    "encoder.lm_output_learned_bias": "classifier.lm_output_learned_bias",
}
_TRANSFORMERS = ("classifier.", "graph_encoder.")  # what names of transformers begin with, and Microsoft's do not
_UNUSED = ("encoder.masked_lm_pooler.weight", "encoder.masked_lm_pooler.bias")  # Microsoft's, never called
#: Settings in Microsoft's checkpoints: names of transformers, with Microsoft's.
_ARGUMENTS = {
    name: name
    for name in "multi_hop_max_dist spatial_pos_max edge_type max_nodes dropout attention_dropout activation_fn".split()
} | {"activation_dropout": "act_dropout"}
SETTINGS = frozenset(FIXED) | frozenset(inspect.signature(PublishedConfig.__init__).parameters) - {"self", "kwargs"}
_NAMESPACE = "argparse.Namespace"  # the arguments of a run, in Microsoft's checkpoints
#: A number of NumPy's beside the weights, such as the best loss so far, stands in the way of nothing.
_NUMPY = ARRAYS | {f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")}


def read_published(cls: Any, source: str | Path, given: Mapping[str, Any]) -> Any:
    """See ``Graphormer.from_published``. ``given`` overrides settings of the checkpoint."""
    path = Path(source)
    if path.is_dir():
        settings, state, where = _folder(path)
    elif path.is_file():
        settings, state, where = _microsoft(path)
    else:
        settings, state, where = _folder(_fetched(str(source)))
    given = dict(given)
    if settings.get("collator") == "shifted" and given.get("collator") == "microsoft":
        del given["collator"]  # which it is, with the rows where they are
    values = [tensor.numel() for tensor in state.values()]
    try:
        config = PublishedConfig(**(settings | {"num_classes": _classes(state)} | given))
        require_fitting(lambda: cls(config), Size(len(values), sum(values)), where)
    except SepNormError:
        raise
    except DAMAGE as error:  # impossible sizes
        raise SepNormError(f"{where} describes no Graphormer: {one_line(error)}. Copy it again.") from error
    model = cls(config).to(next(iter(state.values())).dtype)
    _fill(model, state, where)
    return model.eval()


# ---- transformers -------------------------------------------------------------------------------------------------


def _folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], Path]:
    where = folder / "config.json"
    config = read_named(where)
    if config is None:
        raise SepNormError(
            f"{folder} has no config.json: give a folder of transformers 4, or Microsoft's checkpoint (.pt)."
        )
    if config.get("model_type") != PublishedConfig.model_type:
        raise SepNormError(
            f"{folder} holds a {config.get('model_type')!r} model, and from_published opens 'graphormer' alone: sepnorm.load opens "
            "others."
        )
    state = _prefixed(_weights(folder))
    longest = max((side for tensor in state.values() for side in tensor.shape), default=0)
    settings = {key: vet_size(key, value, where, longest) for key, value in config.items() if key in SETTINGS}
    return settings, state, where


def _weights(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    damage: tuple[type[Exception], ...] = (*DAMAGE, SafetensorError)
    state: dict[str, Tensor] = {}
    names = list(weight_files(folder))
    for name in names:
        try:
            state |= load_file(str(regular(folder / name)))
        except damage as error:
            raise SepNormError(f"{folder / name} cannot be read: {one_line(error)}. Copy it again.") from error
    if names:
        return state
    path = regular(folder / _PICKLED)
    if path is None:
        raise SepNormError(f"{folder} has neither model.safetensors nor {_PICKLED}: it is incomplete, copy it again.")
    return _unpickled(path)[0]


def _prefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the names of the class with a head, also if ``GraphormerModel`` saved them."""
    headless = any(name.startswith("graph_encoder.") for name in state)
    return {f"encoder.{name}" if headless else name: value for name, value in state.items()}


def _fetched(name: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["config.json", "model.safetensors", "model-*-of-*.safetensors", "*.index.json", _PICKLED]
    try:
        return Path(snapshot_download(KNOWN.get(name, name), allow_patterns=patterns))
    except Exception as error:  # each library has its own errors for unreachable names
        raise SepNormError(
            f"{name} is no folder and no file, and cannot be fetched from the hub ({one_line(error)}): give the folder, or one of "
            f"{', '.join(KNOWN)}."
        ) from error


# ---- Microsoft's repository ---------------------------------------------------------------------------------------


def _microsoft(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], Path]:
    described = path.name == _PICKLED and (path.parent / "config.json").is_file()
    if described or path.suffix == ".safetensors":
        raise _of_transformers(path)
    state, found = _unpickled(path)
    state = {name.removeprefix("module."): value for name, value in state.items()}  # of DistributedDataParallel
    if any(name.startswith(_TRANSFORMERS) for name in state):
        raise _of_transformers(path)
    state = {_RENAMED.get(name, name): value for name, value in state.items() if name not in _UNUSED}
    return _described(found) | _measured(state, path) | {"collator": "microsoft"}, state, path


def _of_transformers(path: Path) -> SepNormError:
    return SepNormError(
        f"{path} is a file of transformers, whose settings are beside it: give its folder, {path.parent}."
    )


def _described(found: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from the saved arguments of the training run, if any."""
    said = found.get("args")
    if said is None and isinstance(found.get("cfg"), Mapping):
        said = found["cfg"].get("model")
    said = said.state if isinstance(said, Made) and said.name == _NAMESPACE else said
    arguments = said if isinstance(said, Mapping) else {}
    return {ours: arguments[theirs] for ours, theirs in _ARGUMENTS.items() if arguments.get(theirs) is not None}


def _measured(state: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Settings that follow from the weights: sizes and the place of norms."""
    graph = "encoder.graph_encoder."
    shapes = {name.removeprefix(graph): tuple(value.shape) for name, value in state.items()}
    try:
        rows, width = shapes["graph_node_feature.atom_encoder.weight"]
        edges, heads = shapes["graph_attn_bias.edge_encoder.weight"]
        layers = {int(name.split(".")[1]) for name in shapes if name.startswith("layers.")}
        found = {
            "num_atoms": rows - 1,
            "num_edges": edges - 1,
            "num_in_degree": shapes["graph_node_feature.in_degree_encoder.weight"][0],
            "num_out_degree": shapes["graph_node_feature.out_degree_encoder.weight"][0],
            "num_spatial": shapes["graph_attn_bias.spatial_pos_encoder.weight"][0],
            "embedding_dim": width,
            "ffn_embedding_dim": shapes["layers.0.fc1.weight"][0],
            "num_attention_heads": heads,
            "num_hidden_layers": len(layers),
            "encoder_normalize_before": "emb_layer_norm.weight" in shapes,
            "pre_layernorm": "final_layer_norm.weight" in shapes,
        }
    except (LookupError, ValueError) as error:
        raise SepNormError(
            f"{path} holds no weights of a Graphormer as Microsoft's repository and transformers 4 have it: its tensors are "
            f"{', '.join(list(state)[:3])} and others."
        ) from error
    hops = shapes.get("graph_attn_bias.edge_dis_encoder.weight")
    if hops is None:
        return found | {"edge_type": "one_hop"}
    return found | {"edge_type": "multi_hop", "num_edge_dis": hops[0] // heads**2}


# ---- weights ------------------------------------------------------------------------------------------------------


def _unpickled(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """The weights of a checkpoint by name, in total no larger than the file, and what is beside them."""
    try:
        with stored(path, {_NAMESPACE} | _NUMPY) as file:
            found = file.content
            if not isinstance(found, Mapping):
                kind = "Tensor" if file.tensor(found) is not None else type(found).__name__
                raise SepNormError(f"{path} holds a {kind}, and weights by their names are needed.")
            weights = found.get("model", found.get("state_dict", found))
            state = {name: file.tensor(made) for name, made in weights.items()} if isinstance(weights, Mapping) else {}
    except SepNormError:
        raise
    except DAMAGE as error:
        raise SepNormError(
            f"{path} holds more than tensors and settings, or is damaged, and nothing else is unpickled: "
            f"{one_line(error)}. If you trust it, keep its weights alone: torch.save({{'model': weights}}, "
            "new_path), which are torch.load(path, weights_only=False)['model'], or a model's state_dict()."
        ) from error
    tensors = {name: tensor for name, tensor in state.items() if tensor is not None}
    if not tensors or len(tensors) < len(state):
        raise SepNormError(f"{path} holds no weights by their names: give a checkpoint of a Graphormer.")
    if sum(prod(value.shape) * value.element_size() for value in tensors.values()) > path.stat().st_size:
        raise SepNormError(f"{path} names more weights than it holds: it is not opened.")
    return tensors, found


def _classes(state: Mapping[str, Tensor]) -> int:
    head = state.get("classifier.classifier.weight")
    return 0 if head is None else len(head)


def _fill(model: Any, state: Mapping[str, Tensor], where: Path) -> None:
    """Loads the weights. Raises if one is missing or left over."""
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name in [*wanted, *state]:
        here, there = wanted.get(name), tuple(state[name].shape) if name in state else None
        if here != there:
            raise SepNormError(
                f"the weights beside {where.name} in {where.parent} are those of another model: {name} has the shape {there} there "
                f"and {here} in this one. Use the config and weights of the same model."
            )
    model.load_state_dict(state)
