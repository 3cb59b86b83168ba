"""Cluster voices: average-linkage clustering of unit vectors, in bounded memory.

The mean cosine similarity of two clusters is the product of their mean vectors. Therefore a cluster is two numbers that
add up: the sum of its vectors and their number. Clusters can be merged early, and so thousands of vectors never need a
matrix of all pairs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

CAPACITY = 1000
"""Largest number of clusters that are compared with each other: a matrix of 4 MB."""


def cluster(
    vectors: Vectors, weights: npt.NDArray[np.int64], similarity: float, minimum: int = 1, maximum: int | None = None
) -> Labels:
    """Return the number of the cluster of each vector.

    Args:
        vectors: unit vectors, in the order of time, shape (n, dimensions).
        similarity: mean cosine below which clusters are not merged.
        minimum: fewest clusters, if there are as many vectors.
        maximum: most clusters; None means any number.
    """
    labels = np.arange(len(vectors))
    sums: Sums = vectors[:0].astype(np.float64)
    sizes: Sums = np.zeros(0)
    for start in range(0, len(vectors), CAPACITY // 2):
        added_sizes = weights[start : start + CAPACITY // 2].astype(np.float64)
        added = vectors[start : start + CAPACITY // 2] * added_sizes[:, None]
        labels[start : start + len(added)] = len(sums) + np.arange(len(added))
        sums, sizes = np.concatenate([sums, added]), np.concatenate([sizes, added_sizes])
        if start + len(added) < len(vectors):
            roots = _merge(sums, sizes, similarity=1.0, minimum=1, maximum=CAPACITY // 2)
            sums, sizes, labels[: start + len(added)] = _joined(sums, sizes, roots, labels[: start + len(added)])
    roots = _merge(sums, sizes, similarity, minimum, maximum)
    return _joined(sums, sizes, roots, labels)[2]


def _joined(sums: Sums, sizes: Sums, roots: Labels, labels: Labels) -> tuple[Sums, Sums, Labels]:
    """Return the sums and sizes of the merged clusters, and the labels of the vectors, with numbers from 0."""
    kept, numbers = np.unique(roots, return_inverse=True)
    merged_sums, merged_sizes = np.zeros((len(kept), sums.shape[1])), np.zeros(len(kept))
    np.add.at(merged_sums, numbers, sums)
    np.add.at(merged_sizes, numbers, sizes)
    return merged_sums, merged_sizes, numbers.astype(np.int64)[labels]


def _merge(sums: Sums, sizes: Sums, similarity: float, minimum: int, maximum: int | None) -> Labels:
    """Merge the most similar pairs first. Return for each cluster the cluster that it becomes a part of."""
    sums, sizes = sums.copy(), sizes.copy()
    roots, count = np.arange(len(sums)), len(sums)
    matrix = (sums @ sums.T) / np.outer(sizes, sizes)
    np.fill_diagonal(matrix, -np.inf)
    nearest = matrix.argmax(1) if count else roots
    best = matrix.max(1) if count else sizes
    while count > minimum:
        kept = int(best.argmax())
        if best[kept] < similarity and (maximum is None or count <= maximum):
            break
        gone = int(nearest[kept])
        sums[kept] += sums[gone]
        sizes[kept] += sizes[gone]
        roots[roots == gone] = kept
        count -= 1
        sizes[gone] = np.inf  # its row and column stay at -inf
        row = sums @ sums[kept] / (sizes * sizes[kept])
        row[np.isinf(sizes)] = row[kept] = -np.inf
        matrix[kept] = matrix[:, kept] = row
        matrix[gone] = matrix[:, gone] = -np.inf
        best[gone] = -np.inf
        changed = (nearest == kept) | (nearest == gone) | (row > best)
        changed[kept], changed[gone] = True, False
        for number in np.flatnonzero(changed & np.isfinite(sizes)):
            nearest[number] = matrix[number].argmax()
            best[number] = matrix[number, nearest[number]]
    return roots
