"""Molecules: SMILES to graphs, graphs to padded batches, and Graphormer with its virtual node as [CLS]."""
