"""Native source of the solution for the separators: a parallel cyclic reduction over the lanes.

Reads: a `LaneMemory`.  Produces: `COUPLE`, which prepares the blocks of the reduction before the ADMM
iterations, and the statements of `reduction`, which solve with them in every iteration.  The names
in the source are those of `engines.onchip.lane_source`.

The separators form a block tridiagonal system over the lanes: ``diag``, ``above`` towards the next
lane, and its transpose ``below`` towards the lane before.  Of symmetric blocks only the part below
the diagonal is used.  The reduction keeps two blocks per level, one for the last level, and the
inverse at the end.  `REDUCE` defines the macros of `COUPLE` outside of the loop.
"""

from __future__ import annotations

from warpmpc.engines.onchip.memory import LaneMemory


def kept(name: str, i: int) -> str:
    """Expression of value i that a lane keeps under a name."""
    return f"KEEP({i}, {name})"


def block_of_lanes(lines: list[str]) -> list[str]:
    """Statements that every lane executes."""
    return ["EACH_LANE {", *lines, "}"]


def reduction(memory: LaneMemory, *, folds: bool) -> list[str]:
    """All levels of the reduction.

    Args:
        memory: Memory with the blocks.
        folds: Whether all levels but the last share one loop.
    """
    nx, lines = range(memory.n_separators), []
    if folds:
        lines.append("ROLLED for (int level = 0; level + 1 < LEVELS; ++level) {")
        lines += [*_level(memory, None), "}"]
    else:
        for level in range(memory.levels - 1):
            lines += _level(memory, level)
    if memory.levels:
        lines += _last_level(memory)
    last = memory.n_blocks - 1
    solutions = []
    for i in nx:
        terms = [f"{_entry(memory, last, i, j)} * {kept('s', j)}" for j in nx]
        solutions.append(f"{kept('y', i)} = {' + '.join(terms)};")
    return [*lines, *block_of_lanes(solutions)]


def _level(memory: LaneMemory, level: int | None) -> list[str]:
    """Subtracts both neighbours at a distance from s; None: the distance is ``1 << level``."""
    nx = range(memory.n_separators)
    step = f"(1 << {'level' if level is None else level})"
    lines = [f"FROM_BEFORE({i}, before, s, {step})" for i in nx]
    lines += [f"FROM_BEHIND({i}, behind, s, {step})" for i in nx]
    products = []
    for side, name in enumerate(("before", "behind")):
        block = f"2 * level + {side}" if level is None else 2 * level + side
        products += _products(memory, block, name)
    return [*lines, *block_of_lanes(products)]


def _last_level(memory: LaneMemory) -> list[str]:
    """Subtracts the neighbour of the last level, where a lane has one at most."""
    distance = 1 << memory.levels - 1
    across = [f"FROM_ACROSS({i}, before, s, {distance})" for i in range(memory.n_separators)]
    return [*across, *block_of_lanes(_products(memory, memory.n_blocks - 2, "before"))]


def _products(memory: LaneMemory, block: int | str, name: str) -> list[str]:
    nx = range(memory.n_separators)
    return [
        f"{kept('s', i)} -= {_entry(memory, block, i, j)} * {kept(name, j)};"
        for j in nx
        for i in nx
    ]


def _entry(memory: LaneMemory, block: int | str, i: int, j: int) -> str:
    """Expression of an entry of a block; in a loop over levels all blocks are in memory."""
    size, stored = memory.n_separators, memory.stored_blocks
    if isinstance(block, int) and block >= stored:
        return kept("u", ((block - stored) * size + i) * size + j)
    return f"MEM(W_ROWS + ({block}) * {size * size} + {i * size + j})"


COUPLE = r"""
auto of_neighbour = [&](Lanes x, int h) -> Lanes {
    x = UP(x, h);
    EACH_LANE OF_LANE(x) = lane < h ? (SCALAR)0 : OF_LANE(x);
    return x;
};
// Eliminates one pivot after the other; the result is the inverse with the opposite sign.
auto invert_block = [&](Lanes (&a)[NX][NX]) {
    UNROLL for (int k = 0; k < NX; ++k) {
        const Lanes p = inverted(a[k][k]);
        Lanes column[NX];
        UNROLL for (int i = 0; i < NX; ++i) column[i] = LOWER(a, i, k);
        UNROLL for (int i = 0; i < NX; ++i) if (i != k) {
            const Lanes f = column[i] * p;
            UNROLL for (int j = 0; j <= i; ++j) if (j != k) a[i][j] -= f * column[j];
            LOWER(a, i, k) = f;
        }
        a[k][k] = -p;
    }
    UNROLL for (int i = 0; i < NX; ++i)
        UNROLL for (int j = 0; j <= i; ++j) a[i][j] = -a[i][j];
};
UNROLL for (int i = 0; i < NX; ++i) {
    UNROLL for (int j = 0; j < NX; ++j) below[i][j] = of_neighbour(above[j][i], 1);
    UNROLL for (int j = 0; j <= i; ++j) diag[i][j] += of_neighbour(ahead[i][j], 1);
}
// Parallel cyclic reduction of the separators: each step doubles the distance of neighbours.
ROLLED for (int level = 0; level + 1 < LEVELS; ++level) {
    const int h = 1 << level;
    Lanes inverse[NX][NX], product[NX][NX];
    UNROLL for (int i = 0; i < NX; ++i)
        UNROLL for (int j = 0; j <= i; ++j) inverse[i][j] = diag[i][j];
    invert_block(inverse);
    REDUCE(UP, below, 2 * level)
    REDUCE(DOWN, above, 2 * level + 1)
    // Couplings with the neighbours of neighbours.
    Lanes next[NX][NX];
    UNROLL for (int i = 0; i < NX; ++i)
        UNROLL for (int j = 0; j < NX; ++j) next[i][j] = (Lanes)0;
    UNROLL for (int k = 0; k < NX; ++k)
        UNROLL for (int j = 0; j < NX; ++j) {
            const Lanes other = DOWN(above[k][j], h);
            UNROLL for (int i = 0; i < NX; ++i) next[i][j] -= product[i][k] * other;
        }
    UNROLL for (int i = 0; i < NX; ++i)
        UNROLL for (int j = 0; j < NX; ++j) {
            above[i][j] = next[i][j];
            below[j][i] = of_neighbour(next[i][j], 2 * h);
        }
}
// In the last step a lane has one neighbour at most: the other side is zero.
if (LEVELS > 0) {
    const int h = 1 << (LEVELS > 0 ? LEVELS - 1 : 0);
    Lanes inverse[NX][NX], product[NX][NX];
    UNROLL for (int i = 0; i < NX; ++i) {
        UNROLL for (int j = 0; j < NX; ++j) above[i][j] += below[i][j];
        UNROLL for (int j = 0; j <= i; ++j) inverse[i][j] = diag[i][j];
    }
    invert_block(inverse);
    REDUCE(ACROSS, above, 2 * LEVELS - 2)
}
invert_block(diag);
UNROLL for (int i = 0; i < NX; ++i)
    UNROLL for (int j = i + 1; j < NX; ++j) diag[i][j] = diag[j][i];
STORE_BLOCK(LEVELS > 0 ? 2 * LEVELS - 1 : 0, diag)
"""

# Eliminates one neighbour in one step and updates the diagonal.
REDUCE = r"""
#define STORE_BLOCK(block, a)                                                           \
    UNROLL for (int i = 0; i < NX; ++i)                                                 \
        UNROLL for (int j = 0; j < NX; ++j) {                                           \
            const int place = (block) * NX * NX + i * NX + j;                           \
            if (!KEPT_BLOCKS || (block) < STORED_BLOCKS)                                \
                ROW_OF_LANES(W_ROWS + place) = a[i][j];                                 \
            else                                                                        \
                SAVE_ROW(place - STORED_BLOCKS * NX * NX, u, a[i][j])                   \
        }
#define LOWER(a, i, j) a[(i) > (j) ? (i) : (j)][(i) > (j) ? (j) : (i)]
#define REDUCE(FROM, side, block)                                                       \
    UNROLL for (int i = 0; i < NX; ++i)                                                 \
        UNROLL for (int j = 0; j < NX; ++j) product[i][j] = (Lanes)0;                   \
    UNROLL for (int k = 0; k < NX; ++k)                                                 \
        UNROLL for (int j = 0; j <= k; ++j) {                                           \
            const Lanes other = FROM(inverse[k][j], h);                                 \
            UNROLL for (int i = 0; i < NX; ++i) {                                       \
                product[i][j] += side[i][k] * other;                                    \
                if (j != k) product[i][k] += side[i][j] * other;                        \
            }                                                                           \
        }                                                                               \
    STORE_BLOCK(block, product)                                                         \
    UNROLL for (int i = 0; i < NX; ++i)                                                 \
        UNROLL for (int j = 0; j <= i; ++j)                                             \
            UNROLL for (int k = 0; k < NX; ++k)                                         \
                diag[i][j] -= product[i][k] * side[j][k];
"""
