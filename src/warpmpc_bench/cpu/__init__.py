"""`warpmpc bench cpu`: threads, engines and OSQP on the cores of this machine, interleaved."""
