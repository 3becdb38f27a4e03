"""Native text that prepares the solves for the separators of all lanes; see `onchip_native`.

The separators form a block tridiagonal system over the lanes: ``diag``, ``above`` towards the next
lane, and its transpose ``below`` towards the lane before.  Symmetric blocks are used below their
diagonal only.  `REDUCE` is a macro that `COUPLE` uses; it is defined outside of the loop.
"""

COUPLE = r"""
auto of_neighbour = [&](Lanes x, int h) -> Lanes {
    x = UP(x, h);
    EACH_LANE OF_LANE(x) = lane < h ? (SCALAR)0 : OF_LANE(x);
    return x;
};
// One pivot after the other; what is left is the inverse with the opposite sign.
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
    // Neighbours of neighbours.
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

# One neighbour in one step: it takes its share from the diagonal.
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
