"""Sizes of the QP families in tests: parameter and density of the data."""

# 18 to 168 variables and rows.
SMALL = {
    "portfolio": (20, 1.0),
    "lasso": (8, 1.0),
    "svm": (8, 1.0),
    "huber": (8, 1.0),
    "random": (10, 0.4),
    "equality": (12, 1.0),
    "linear_mpc": (3, 1.0),
}
