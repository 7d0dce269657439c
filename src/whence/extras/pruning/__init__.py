"""Pruning of weights and units by a posterior.

- ``masks``: :func:`whence.prune`, masks on the least needed weights or units, by criterion;
- ``curve``: :func:`whence.prune_curve`, how much a network loses as more of it is pruned;
- ``compact``: :func:`whence.compact`, a pruned network without its constant units;
- ``graph``: which layer feeds which, traced by ``torch.fx``.
"""
