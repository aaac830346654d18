"""SMILES to graphs by RDKit, and graphs of PyTorch Geometric taken as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sepnorm.data.tables import LONGEST_TEXT
from sepnorm.domains.molecules.graphs import MOST_ATOMS, Bytes, Graph, Graphs, feature_set, offsets
from sepnorm.errors import SepNormError
from sepnorm.surgery.model_call import is_graph, is_graph_set

#: The 28 atom types of ZINC, in order: element, written hydrogens, charge.
ZINC_ATOMS = (
    "C;O;N;F;C H1;S;Cl;O -;N H1 +;Br;N H3 +;N H2 +;N +;N -;S -;I;P;O H1 +;N H1 -;O +;S +;P H1;P H2;C H2 -;P +;S H1 +;"
    "C H1 -;P H1 +"
).split(";")


class Rejected(NamedTuple):
    """A row that could not be read as a molecule.

    Attributes:
        row: its number, from 0.
        smiles: its content.
        reason: why it was rejected.
    """

    row: int
    smiles: Any
    reason: str


class _RefusedError(Exception):
    """Why a molecule cannot be described."""


Codes = bytes | bytearray
Reader = Callable[[Any], tuple[Codes, Codes, Codes]]


def featurise(smiles: Sequence[str], kind: str = "zinc", *, max_atoms: int = 128) -> tuple[Graphs, list[Rejected]]:
    """Graphs of the molecules that can be read, in order, and the rows that cannot, with the reason for each.

    Args:
        smiles: one molecule each. Hydrogens count as atoms only where RDKit keeps them.
        kind: ``"zinc"`` (one type of atom and one of bond; bonds are single, double or triple, with RDKit's choice where rings
            alternate) or ``"ogb"`` (nine features of atoms and three of bonds, aromatic bonds as such; what has no
            category of its own gets the last).
        max_atoms: larger molecules are rejected: pairs of atoms grow with the square.
    """
    if not 1 <= max_atoms <= MOST_ATOMS:
        raise SepNormError(f"max_atoms lies between 1 and {MOST_ATOMS}, found {max_atoms!r}.")
    if isinstance(smiles, str):
        raise SepNormError("featurise takes a list of SMILES, found one text: give [smiles].")
    read = {"zinc": _zinc_reader, "ogb": _ogb_reader}[feature_set(kind).name]()
    atoms, bonds, bond_features = bytearray(), bytearray(), bytearray()
    sizes, counts, rejected = [], [], []
    with _quiet():
        for row, text in enumerate(smiles):
            try:
                molecule = _parse(text, max_atoms)
                atom_codes, ends, bond_codes = read(molecule)
            except _RefusedError as error:
                rejected.append(Rejected(row, text, str(error)))
                continue
            atoms += atom_codes
            bonds += ends
            bond_features += bond_codes
            sizes.append(molecule.GetNumAtoms())
            counts.append(len(ends) // 2)
    arrays = [np.frombuffer(part, dtype=np.uint8) for part in (atoms, bonds, bond_features)]
    return Graphs(kind, arrays[0], arrays[1], arrays[2], sizes, counts), rejected


def _chem() -> Any:
    try:
        from rdkit import Chem
    except ImportError as error:
        raise SepNormError("reading SMILES needs the package rdkit: pip install 'sepnorm[molecules]'.") from error
    return Chem


def _quiet() -> Any:
    """While it lasts, RDKit does not print what is in the reasons."""
    from rdkit import rdBase

    return rdBase.BlockLogs()


def _parse(text: Any, max_atoms: int) -> Any:
    from rdkit import Chem

    if not isinstance(text, str):
        raise _RefusedError(f"a SMILES is text, found {type(text).__name__}")
    if not text.strip():
        raise _RefusedError("the SMILES is empty")
    if len(text) > LONGEST_TEXT:
        raise _RefusedError(f"it has more than {LONGEST_TEXT:,} characters")
    try:
        molecule = Chem.MolFromSmiles(text)
    except UnicodeEncodeError as error:
        raise _RefusedError("it has half of a character, as in text of another encoding") from error
    if molecule is None:
        raise _RefusedError(f"RDKit cannot read it: {_problem(Chem, text)}")
    if not 1 <= molecule.GetNumAtoms() <= max_atoms:
        raise _RefusedError(f"it has {molecule.GetNumAtoms()} atoms, the limit is max_atoms={max_atoms}")
    return molecule


def _problem(chem: Any, text: str) -> str:
    raw = chem.MolFromSmiles(text, sanitize=False)
    if raw is None:
        return "it is not valid SMILES"
    problems = chem.DetectChemistryProblems(raw)
    return problems[0].Message() if problems else "its chemistry is not possible"


# ---- the two feature sets -----------------------------------------------------------------------------------------------


class _Codes(dict[Any, bytes]):
    """Raw values to codes, each combination worked out once: there are few different atoms in many molecules."""

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        super().__init__()
        self.encode = encode

    def __missing__(self, raw: Any) -> bytes:
        self[raw] = code = self.encode(raw)
        return code


def _zinc_reader() -> Reader:
    chem = _chem()
    elements = chem.GetPeriodicTable()
    types = {name: code for code, name in enumerate(ZINC_ATOMS)}

    def atom_type(raw: tuple[int, int, int]) -> bytes:
        number, charge, hydrogens = raw
        element = elements.GetElementSymbol(number) if number else "*"
        sign = {0: "", 1: " +", -1: " -"}.get(charge, f" {charge:+d}")
        # The types are read off kekulised SMILES, in which the hydrogen of [nH] is not written.
        for written in (f" H{hydrogens}" if hydrogens else "", ""):
            if element + written + sign in types:
                return bytes([types[element + written + sign]])
        raise _RefusedError(f"{element}{sign} is none of ZINC's 28 types of atoms; kind='ogb' has all elements")

    def bond_order(raw: float) -> bytes:
        if raw in (1, 2, 3):
            return bytes([int(raw)])
        raise _RefusedError(
            f"it has a bond of order {raw:g}, neither single, double nor triple; kind='ogb' has all bonds"
        )

    codes, orders = _Codes(atom_type), _Codes(bond_order)

    def read(molecule: Any) -> tuple[Codes, Codes, Codes]:
        chem.Kekulize(molecule, clearAromaticFlags=True)
        atoms, ends, bonds = bytearray(), bytearray(), bytearray()
        for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())):
            atoms += codes[atom.GetAtomicNum(), atom.GetFormalCharge(), atom.GetNumExplicitHs()]
        for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
            ends += bytes((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
            bonds += orders[bond.GetBondTypeAsDouble()]
        return atoms, ends, bonds

    return read


def _ogb_reader() -> Reader:
    chem = _chem()
    features = feature_set("ogb")
    chiral, hybrid, bond_type, stereo = chem.ChiralType, chem.HybridizationType, chem.BondType, chem.BondStereo
    atom_values = [
        range(1, 119),
        [chiral.CHI_UNSPECIFIED, chiral.CHI_TETRAHEDRAL_CW, chiral.CHI_TETRAHEDRAL_CCW, chiral.CHI_OTHER],
        range(11),
        range(-5, 6),
        range(9),
        range(5),
        [hybrid.SP, hybrid.SP2, hybrid.SP3, hybrid.SP3D, hybrid.SP3D2],
        [False, True],
        [False, True],
    ]
    bond_values = [
        [bond_type.SINGLE, bond_type.DOUBLE, bond_type.TRIPLE, bond_type.AROMATIC],
        [stereo.STEREONONE, stereo.STEREOZ, stereo.STEREOE, stereo.STEREOCIS, stereo.STEREOTRANS, stereo.STEREOANY],
        [False, True],
    ]
    atom_codes = _Codes(_encoder(atom_values, features.atoms))
    bond_codes = _Codes(_encoder(bond_values, features.bonds))

    plain, double, unmarked = chiral.CHI_UNSPECIFIED, bond_type.DOUBLE, stereo.STEREONONE

    def read(molecule: Any) -> tuple[Codes, Codes, Codes]:
        atoms, ends, bonds = bytearray(), bytearray(), bytearray()
        # RDKit's enumerations cost ten times a number: asked only of atoms and bonds that can have one of its values.
        for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())):
            aromatic = atom.GetIsAromatic()
            atoms += atom_codes[
                atom.GetAtomicNum(), plain if aromatic else atom.GetChiralTag(), atom.GetTotalDegree(),
                atom.GetFormalCharge(), atom.GetTotalNumHs(), atom.GetNumRadicalElectrons(), atom.GetHybridization(),
                aromatic, atom.IsInRing(),
            ]  # fmt: skip
        for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
            ends += bytes((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
            kind = bond.GetBondType()
            bonds += bond_codes[kind, bond.GetStereo() if kind == double else unmarked, bond.GetIsConjugated()]
        return atoms, ends, bonds

    return read


def _encoder(values: list[Any], categories: Sequence[int]) -> Callable[[Any], bytes]:
    """Codes of raw values, unknown ones in the last category of their feature."""
    tables = [{value: code for code, value in enumerate(known)} for known in values]
    starts = [int(start) for start in offsets(categories)]

    def encode(raw: tuple[Any, ...]) -> bytes:
        parts = zip(raw, tables, categories, starts, strict=True)
        return bytes(start + table.get(value, count - 1) for value, table, count, start in parts)

    return encode


# ---- PyTorch Geometric --------------------------------------------------------------------------------------------------


def as_graphs(data: Any, kind: str) -> Sequence[Graph]:
    """Graphs as they are, and what ``from_pyg`` takes, or a single ``Data``."""
    if isinstance(data, Graphs):  # a list of a million would be large
        return data
    if isinstance(data, Graph) or is_graph(data):
        found = [data]
    elif hasattr(data, "__iter__") or hasattr(data, "__getitem__"):
        found = list(data)
    else:
        raise SepNormError(
            "a Graphormer takes graphs of featurise, or Data, a Batch, a data set or a DataLoader of PyG, found "
            f"{type(data).__name__}."
        )
    return found if all(isinstance(graph, Graph) for graph in found) else from_pyg(found, kind)


def from_pyg(data: Iterable[Any], kind: str = "zinc") -> Graphs:
    """Converts graphs of PyTorch Geometric. The package itself is not needed.

    Args:
        data: ``Data`` objects, a ``Batch``, a data set, or a ``DataLoader`` of these. Each graph has ``x`` (atoms, features),
            ``edge_index`` (2, edges) with every bond in both directions, and ``edge_attr`` (edges, features). A single
            feature may come without its dimension.
        kind: the feature set, ``"zinc"`` or ``"ogb"``. Values are the categories of the published data set. PyG's own
            ``from_smiles`` has other categories; it is detected if the graphs keep their SMILES.

    Returns:
        The graphs, in order.

    Raises:
        SepNormError: if a graph lacks a tensor, is directed, or has values outside of the feature set.
    """
    several = [data] if hasattr(data, "to_data_list") else data
    items = (item for each in several for item in _items(each))
    return Graphs.join(kind, [graph_of(number, item, kind) for number, item in enumerate(items)])


def _items(data: Any) -> Iterable[Any]:
    """The graphs of a ``Batch`` or a data set; a single one as it is."""
    if hasattr(data, "to_data_list"):
        return data.to_data_list()  # type: ignore[no-any-return]
    return data if is_graph_set(data) else [data]


def graph_of(number: int, item: Any, kind: str) -> Graph:
    """Converts one graph of PyTorch Geometric; ``number`` names it in messages."""
    features = feature_set(kind)
    missing = [name for name in ("x", "edge_index", "edge_attr") if getattr(item, name, None) is None]
    if missing:
        raise SepNormError(
            f"graph {number}, a {type(item).__name__}, has no {' and no '.join(missing)}: a graph has x, edge_index and edge_attr; "
            f"where bonds are of one kind, edge_attr is zeros of the shape (edges, {len(features.bonds)})."
        )
    if getattr(item, "ptr", None) is not None:
        raise SepNormError(f"graph {number} is a batch of several graphs: give batch.to_data_list().")
    x, index, attributes = (_array(value) for value in (item.x, item.edge_index, item.edge_attr))
    atoms = _codes_of(x, features.atoms, f"x of graph {number}")
    codes = _codes_of(attributes, features.bonds, f"edge_attr of graph {number}")
    smiles = getattr(item, "smiles", None)
    known = list(featurise([smiles], kind)[0]) if isinstance(smiles, str) else []
    if known and not np.array_equal(known[0].atoms, atoms):
        raise SepNormError(
            f"x of graph {number} does not have the codes of {kind} for its SMILES, {smiles!r}: from_smiles of PyG counts others. "
            "Give featurise the SMILES: featurise([item.smiles for item in data])."
        )
    if not 1 <= len(atoms) <= MOST_ATOMS:
        raise SepNormError(f"graph {number} has {len(atoms)} atoms, and 1 to {MOST_ATOMS} can be taken.")
    if index.shape != (2, len(codes)):
        raise SepNormError(
            f"edge_index of graph {number} has the shape (2, {len(codes)}), one column for each edge_attr, found {index.shape}."
        )
    if index.size and not 0 <= index.min() <= index.max() < len(atoms):
        raise SepNormError(
            f"edge_index of graph {number} names atoms up to {index.max()} and from {index.min()}, there are {len(atoms)}."
        )
    if (index % 1 != 0).any():
        raise SepNormError(
            f"edge_index of graph {number} names atoms by whole numbers, found {index[index % 1 != 0][0]:g}."
        )
    forth, back = index[0] < index[1], index[0] > index[1]
    here = np.column_stack([index[0][forth], index[1][forth], codes[forth]])
    there = np.column_stack([index[1][back], index[0][back], codes[back]])
    here, there = (side[np.lexsort((side[:, 1], side[:, 0]))] for side in (here, there))
    once = len(np.unique(here[:, :2], axis=0)) == len(here)
    if not once or not np.array_equal(here, there) or not (forth | back).all():
        raise SepNormError(
            f"bonds of graph {number} have no direction: each is there once in both directions with the same edge_attr, and "
            "none from an atom to itself; other graphs were found."
        )
    return Graph(atoms, here[:, :2].astype(np.uint8), here[:, 2:].astype(np.uint8), kind)


def _array(values: Any) -> Any:
    """NumPy's array of a list or of a tensor, on any device."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _codes_of(values: Any, categories: Sequence[int], what: str) -> Bytes:
    table = values[:, None] if values.ndim == 1 else values
    if table.ndim != 2 or (len(table) and table.shape[1] != len(categories)):
        raise SepNormError(f"{what} has one row of {len(categories)} features each, found the shape {values.shape}.")
    table = table.reshape(len(table), len(categories))
    if table.size and not ((table >= 0) & (table < np.array(categories)) & (table == np.floor(table))).all():
        raise SepNormError(
            f"{what} has categories below {tuple(categories)}, found values from {table.min()} to {table.max()}."
        )
    return table.astype(np.uint8) + offsets(categories)
