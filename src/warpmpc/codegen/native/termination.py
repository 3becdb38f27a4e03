"""Native source of the termination check of an ADMM loop: residuals, certificates, status.

The kernel around it defines its names, see `engines.runtime.admm_loop`.  Where two threads work on a
problem, each one computes for its own nodes, and the second one decides for both.
"""

from __future__ import annotations

from warpmpc._conventions import Status
from warpmpc.codegen.native.status import status_enum

# Residuals of the unscaled problem; `size` is what unscales x and y, and a residual is divided by
# size * cost.  Certificates are those of the scaled problem, relative to the largest entry of each
# row or column of A.  W serves as memory for y, V holds x and y of an earlier check, and C their
# changes since.  Any direction may be a certificate; that of a single iteration is so small beside y
# that float32 keeps none of its digits.
CHECK = (
    status_enum(tuple(Status)[: Status.NON_FINITE + 1])
    + r"""
    Pack primal = 0, primal_scale = 0, dual = 0, dual_scale = 0, objective = 0, poison = 0;
    Pack x_change = 0, y_change = 0, descent = 0, support = 0, support_size = 0;
    Pack flat = 0, combination = 0, rise = 0, curved = 0, linear = 0, held = 0;
    for (int i = MY_FIRST_NODE; i < MY_LAST_NODE; ++i) {
        const Pack unit = scaled ? GET(Z, i) : (Pack)1;
        if (nodes[i].is_row) {
            const Pack v = AT(X, i), lo = GET(Q, i), hi = GET(U, i);
            const Pack s = PROJECT(i, v, lo, hi), y = MULTIPLIER(v, s, GET(R, i));
            held += y * s;
            poison += y * unit - y * unit;  // the unscaled one may overflow
            AT(W, i) = y;
            if (!certify) continue;
            const Pack large = INFINITE * unit * cost;
            Pack change = y - AT(V, i), none = 0;
            change = NO_UPPER ? MIN(change, none) : change;
            change = NO_LOWER ? MAX(change, none) : change;
            AT(C, i) = change;
            y_change = MAX(y_change, ABS(change));
            const Pack of_upper = (hi > large ? none : hi) * MAX(change, none);
            const Pack of_lower = (lo < -large ? none : lo) * MIN(change, none);
            support += of_upper + of_lower;
            support_size += ABS(of_upper) + ABS(of_lower);
        } else {
            const Pack x = AT(X, i);
            poison += x * unit - x * unit;
            if (!certify) continue;
            const Pack change = x - AT(V, i);
            AT(C, i) = change;
            x_change = MAX(x_change, ABS(change));
            descent += GET(Q, i) * change;
        }
    }
    MEET
    for (int i = MY_FIRST_NODE; i < MY_LAST_NODE; ++i) {
        const Node node = nodes[i];
        const Pack unscale = scaled ? 1 / (GET(Z, i) * cost) : (Pack)1;
        // Rows: A x.  Variables: P x up to `split`, then A'y.  K holds P + sigma I.
        Pack product = 0, moved = 0, product_A = 0, moved_A = 0, size_A = (SCALAR)1e-30;
        const SCALAR* with = node.is_row ? X : W;
        #pragma unroll 4
        for (int t = node.begin; t < node.split; ++t) {
            product += GET(K, (Offset)terms[t].entry) * AT(X, (Offset)terms[t].node);
            if (certify) moved += GET(K, (Offset)terms[t].entry) * AT(C, (Offset)terms[t].node);
        }
        #pragma unroll 4
        for (int t = node.split; t < node.end; ++t) {
            product_A += GET(K, (Offset)terms[t].entry) * AT(with, (Offset)terms[t].node);
            if (!certify) continue;
            moved_A += GET(K, (Offset)terms[t].entry) * AT(C, (Offset)terms[t].node);
            size_A = MAX(size_A, ABS(GET(K, (Offset)terms[t].entry)));
        }
        if (node.is_row) {
            const Pack lo = GET(Q, i), hi = GET(U, i), s = PROJECT(i, AT(X, i), lo, hi);
            primal = MAX(primal, ABS(product_A - s) * unscale);
            primal_scale = MAX(primal_scale, MAX(ABS(product_A), ABS(s)) * unscale);
            // How far the change leaves what the bounds allow in every multiple.
            const Pack large = INFINITE / unscale, none = 0;
            rise = MAX(rise, (STOPS_RISE ? moved_A : none) / size_A);
            rise = MAX(rise, (STOPS_FALL ? -moved_A : none) / size_A);
            PAY_SOFT
        } else {
            const Pack q = GET(Q, i), x = AT(X, i);
            product -= SIGMA * x;
            dual = MAX(dual, ABS(product + q + product_A) * unscale);
            dual_scale = MAX(dual_scale, MAX(MAX(ABS(product), ABS(product_A)), ABS(q)) * unscale);
            objective += ((SCALAR)0.5 * product + q) * x;
            curved += product * x;
            linear += q * x;
            if (certify) flat = MAX(flat, ABS(moved - SIGMA * AT(C, i)));
            combination = MAX(combination, ABS(moved_A) / size_A);
        }
    }
    GATHER_SIDES
    objective /= cost;
    curved /= cost;
    linear /= cost;
    held /= cost;
    ON_SIDE(1) for (int l = 0; l < LANES_HERE; ++l) {
        if (status[l] != RUNNING) continue;
        const bool solved = IS_SOLVED(LANE(primal, l), LANE(primal_scale, l), LANE(dual, l),
            LANE(dual_scale, l), eps_abs, eps_rel)
            && (!check_gap || CLOSES_GAP(LANE(curved, l), LANE(linear, l), LANE(held, l), eps_abs, eps_rel));
        int verdict = RUNNING;
        if (certify) {
            const SCALAR limit = eps_dual_inf * LANE(x_change, l);
            if (IS_DUAL_INFEASIBLE(LANE(x_change, l), LANE(descent, l), LANE(flat, l), LANE(rise, l),
                    eps_dual_inf, limit)) verdict = DUAL_INFEASIBLE;
            if (IS_PRIMAL_INFEASIBLE(LANE(y_change, l), LANE(support, l), LANE(support_size, l),
                    LANE(combination, l), eps_prim_inf)) verdict = PRIMAL_INFEASIBLE;
        }
        if (solved && (certify || t + 1 == max_iter)) verdict = SOLVED;
        if (!(LANE(poison, l) == 0)) verdict = NON_FINITE;
        status[l] = verdict;
        iterations[l] = t + 1;
        report[l] = LANE(primal, l);
        report[TILE + l] = LANE(primal_scale, l);
        report[TILE_2 + l] = LANE(dual, l);
        report[TILE_3 + l] = LANE(dual_scale, l);
        report[TILE_4 + l] = LANE(objective, l);
    }
    MEET
    bool running = false;
    for (int l = 0; l < LANES_HERE; ++l) running = running || status[l] == RUNNING;
    if (!ANYONE(running)) break;
    MARK_DONE
    const bool renewed = certify && IS_REFERENCE((t + 1) / check_every);
    for (int i = MY_FIRST_NODE; i < MY_LAST_NODE; ++i)
        if (nodes[i].is_row) {
            const Pack v = AT(X, i), s = PROJECT(i, v, GET(Q, i), GET(U, i));
            if (renewed) AT(V, i) = AT(W, i);
            AT(W, i) = RHS_OF_V(v, s);
        } else if (renewed) {
            AT(V, i) = AT(X, i);
        }
"""
)

# Results of a check that the threads of a problem combine, and how.
GATHERED = {
    **dict.fromkeys(("primal", "primal_scale", "dual", "dual_scale"), "MAX"),
    **dict.fromkeys(("x_change", "y_change", "flat", "combination", "rise"), "MAX"),
    **dict.fromkeys(("objective", "poison", "descent", "support", "support_size"), "ADD"),
    **dict.fromkeys(("curved", "linear", "held"), "ADD"),
}
GATHER = "\n".join(
    [
        "ON_SIDE(0) {",
        *(f"SEND({i}, {name})" for i, name in enumerate(GATHERED)),
        "}",
        "MEET",
        "ON_SIDE(1) {",
        *(
            f"{name} = {join}({name}, RECEIVED({i}));"
            for i, (name, join) in enumerate(GATHERED.items())
        ),
        "}",
    ]
)
