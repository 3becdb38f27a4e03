"""C++ source that all engines share; the only place where formulas stand as C++."""
