"""Native text that prepares the solves for the separators of all lanes; see `onchip_native`.

The separators form a block tridiagonal system over the lanes: ``diag``, and ``above`` towards the
next lane.  `REDUCE` is a macro that `COUPLE` uses; it is defined outside of the loop.
"""

COUPLE = r"""
auto of_neighbour = [&](Lanes x) -> Lanes {
    x = UP(x, 1);
    EACH_LANE OF_LANE(x) = IF_BEFORE(OF_LANE(x));
    return x;
};
// Parallel cyclic reduction of the separators: each step doubles the distance of neighbours.
auto invert_block = [&](Lanes (&a)[NX][NX]) {
    UNROLL
    for (int k = 0; k < NX; ++k) {
        const Lanes p = inverted(a[k][k]);
        a[k][k] = p;
        UNROLL
        for (int j = 0; j < NX; ++j) if (j != k) a[k][j] *= p;
        UNROLL
        for (int i = 0; i < NX; ++i) if (i != k) {
            const Lanes f = a[i][k];
            UNROLL
            for (int j = 0; j < NX; ++j) if (j != k) a[i][j] -= f * a[k][j];
            a[i][k] = -f * p;
        }
    }
};
UNROLL
for (int i = 0; i < NX; ++i) {
    UNROLL
    for (int j = 0; j < NX; ++j) below[i][j] = of_neighbour(above[j][i]);
    UNROLL
    for (int j = 0; j <= i; ++j) {
        diag[i][j] += of_neighbour(ahead[i][j]);
        diag[j][i] = diag[i][j];
    }
}
#pragma unroll 1
for (int level = 0; level < LEVELS; ++level) {
    const int h = 1 << level, first = REDUCTION + 2 * level * NX * NX;
    Lanes inverse[NX][NX], product[NX][NX], next[NX][NX];
    UNROLL
    for (int i = 0; i < NX; ++i)
        UNROLL
        for (int j = 0; j < NX; ++j) inverse[i][j] = diag[i][j];
    invert_block(inverse);
    REDUCE(UP, below, 0)
    REDUCE(DOWN, above, NX * NX)
}
invert_block(diag);
UNROLL
for (int i = 0; i < NX; ++i)
    UNROLL
    for (int j = 0; j < NX; ++j)
        ROW_OF_LANES(REDUCTION + 2 * LEVELS * NX * NX + i * NX + j) = diag[i][j];
"""

# One neighbour in one step: takes its share from the diagonal and couples to its other neighbour.
REDUCE = r"""
#define REDUCE(FROM, side, place)                                                       \
    UNROLL for (int i = 0; i < NX; ++i)                                      \
        UNROLL for (int j = 0; j < NX; ++j) {                                \
            product[i][j] = (Lanes)0;                                                   \
            next[i][j] = (Lanes)0;                                                      \
        }                                                                               \
    UNROLL for (int k = 0; k < NX; ++k)                                      \
        UNROLL for (int j = 0; j < NX; ++j) {                                \
            const Lanes other = FROM(inverse[k][j], h);                                 \
            UNROLL for (int i = 0; i < NX; ++i)                              \
                product[i][j] += side[i][k] * other;                                    \
        }                                                                               \
    UNROLL for (int i = 0; i < NX; ++i)                                      \
        UNROLL for (int j = 0; j < NX; ++j)                                  \
            ROW_OF_LANES(first + place + i * NX + j) = product[i][j];                            \
    UNROLL for (int i = 0; i < NX; ++i)                                      \
        UNROLL for (int j = 0; j < NX; ++j)                                  \
            UNROLL for (int k = 0; k < NX; ++k)                              \
                diag[i][j] -= product[i][k] * side[j][k];                               \
    UNROLL for (int k = 0; k < NX; ++k)                                      \
        UNROLL for (int j = 0; j < NX; ++j) {                                \
            const Lanes other = FROM(side[k][j], h);                                    \
            UNROLL for (int i = 0; i < NX; ++i)                              \
                next[i][j] -= product[i][k] * other;                                    \
        }                                                                               \
    UNROLL for (int i = 0; i < NX; ++i)                                      \
        UNROLL for (int j = 0; j < NX; ++j) side[i][j] = next[i][j];
"""
