"""One folder per engine, each with its plan, source, kernels and launch; runtime serves all."""
