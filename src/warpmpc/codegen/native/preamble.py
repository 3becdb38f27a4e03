"""Preamble of every kernel: names of types and limits, packs, memory access, functions.

One thread works on a `Pack`.  On CUDA that is one value of one problem.  On the CPU it is one value
for each of some lanes, by default 64 bytes together, so that plain operations become one or two
vector instructions; other functions are called lane by lane.

    SCALAR, Offset                  types of values, and of places in memory
    PTX, REG                        the type of values in inline assembly, and of its registers
    TINY, INFINITE                  the smallest normal number; what is beyond it is absent
    WIDTH                           lanes of a pack on the CPU
    LANES_HERE, LANE(pack, l)       lanes of a pack here, and the value of one of them
    PACK_EACH(out, in, f)           applies a function to every lane
    GET(base, row), AT(base, row)   a row of a tile: one that is only read, or one that is written
    ROW(slot)                       entry of the table of rows
    DIVIDED(a, b)                   a quotient

A kernel may define some of them before: WIDTH; STRIDE, the values between two rows (1 if problems
are contiguous, and then a pack is one value); INDEX(row), the type in which places are computed.

Kernels with generated functions go on with:

    WHOLE, PART                     attributes of a function that is alone, or one of several
    CARRIED(count)                  declares ``carried``: the values that a part leaves for later ones
    Quick, Math, Called             functions of packs, named as in `codegen.ir.Op`: short ones,
                                    inlined ones on CUDA, and the same ones as calls
"""

from __future__ import annotations

from warpmpc.codegen.ir import BINARY, Op
from warpmpc.codegen.native.status import DEFINE_INFINITE

# Warp declares only some functions of libm, but its clang has all of them as builtins.
_NAMES = {
    "float32": """
#define SCALAR float
#define PTX "f32"
#define REG "f"
#if defined(__CUDA_ARCH__)
#define LIBM(name) ::name##f
#define INVERSE_ERF ::erfinvf
#else
#define LIBM(name) __builtin_##name##f
#define INVERSE_ERF Scalar::erfinv
#endif
""",
    "float64": """
#define SCALAR double
#define PTX "f64"
#define REG "d"
#if defined(__CUDA_ARCH__)
#define LIBM(name) ::name
#define INVERSE_ERF ::erfinv
#else
#define LIBM(name) __builtin_##name
#define INVERSE_ERF Scalar::erfinv
#endif
""",
}

_TINY = {"float32": "1.17549435e-38f", "float64": "2.2250738585072014e-308"}

_TYPES = r"""
typedef long long Offset;
#ifndef STRIDE
#define STRIDE TILE
#endif
#ifndef INDEX
#define INDEX(row) (Offset)(row)
#endif
#if defined(__CUDA_ARCH__)
typedef SCALAR Pack;
#define LANES_HERE 1
#define LANE(pack, l) (pack)
#define PACK_EACH(out, in, f) (out) = f(in)
#define GET(base, row) __ldg((base) + INDEX(row) * STRIDE)
#define ROW(slot) __ldg(rows + (slot))
#else
#ifndef WIDTH
#define WIDTH (64 / (int)sizeof(SCALAR))
#endif
#if STRIDE == 1
typedef SCALAR Pack;
#define PACK_EACH(out, in, f) (out) = f(in)
#else
typedef SCALAR Pack __attribute__((ext_vector_type(WIDTH), aligned(sizeof(SCALAR))));
#define PACK_EACH(out, in, f) for (int _l = 0; _l < WIDTH; ++_l) (out)[_l] = f((in)[_l])
#endif
#define LANES_HERE WIDTH
#define LANE(pack, l) (pack)[l]
#define GET(base, row) (*(const Pack*)((base) + INDEX(row) * STRIDE))
#define ROW(slot) rows[slot]
#endif
#define AT(base, row) (*(Pack*)((base) + INDEX(row) * STRIDE))
#define DIVIDED(a, b) ((a) / (b))
"""

# Extrema of values that are compared, not looked up in libm, on the CPU.  Kernels whose packs are
# functions' arguments take those of `Quick` instead, which treat NaN like C.
EXTREMA = r"""
#if defined(__CUDA_ARCH__)
#define MIN(a, b) LIBM(fmin)(a, b)
#define MAX(a, b) LIBM(fmax)(a, b)
#else
#define MIN(a, b) ((b) < (a) ? (b) : (a))
#define MAX(a, b) ((a) < (b) ? (b) : (a))
#endif
"""

INVERT_PIVOT = r"""
// A pivot that cannot be divided by leaves 0 (zero or subnormal) or NaN (not finite, or so large
// that its inverse is subnormal and devices disagree): a flag that costs nothing and stays in its
// problem.
auto invert = [](SCALAR d) -> SCALAR {
    const SCALAR nothing = d - d;
    if (!(nothing == 0)) return nothing;
    if (d < TINY && d > -TINY) return (SCALAR)0;
    const SCALAR inverse = 1 / d;
    return inverse < TINY && inverse > -TINY ? (SCALAR)NAN : inverse;
};
"""

# A function that is alone is inlined on CUDA, but not on the CPU, where Warp makes kernels twice.
_ATTRIBUTES = r"""
#if defined(__CUDA_ARCH__)
// Warp's is a division of doubles, which NVRTC leaves to the device.
#undef NAN
#define NAN __int_as_float(0x7fc00000)
#define WHOLE __device__ __forceinline__
#define PART __device__ __noinline__
#define CARRIED(count) Pack carried[count];
#define RELEASE_CARRIED
#define EACH(attribute, f, name) static attribute Pack name(Pack x) { return f(x); }
#define EACH_PAIR(attribute, f, name)                                                   \
    static attribute Pack name(Pack x, Pack y) { return f(x, y); }
#else
#define WHOLE __attribute__((noinline))
#define PART __attribute__((noinline))
#define CARRIED(count) Pack* carried = (Pack*)malloc((count) * sizeof(Pack));
#define RELEASE_CARRIED free(carried);
// Warp's own erfinv loses its digits near zero.
struct Scalar {
    static double erfinv(double x) {
        const double size = __builtin_fabs(x);
        if (size < 1e-8) return x * 0.88622692545275801365;
        if (!(size < 1)) return size == 1 ? x * __builtin_inf() : __builtin_nan("");
        const double w = __builtin_log1p(-size * size), t = 4.3307 + 0.5 * w;
        double y = __builtin_sqrt(__builtin_sqrt(t * t - w * 6.8027) - t);
        for (int step = 0; step < 3; ++step) {  // Halley; from 2e-3 to all digits
            const double f = size < 0.5 ? __builtin_erf(y) - size : (1 - size) - __builtin_erfc(y);
            y -= f / (1.1283791670955126 * __builtin_exp(-y * y) + f * y);
        }
        return __builtin_copysign(y, x);
    }
};
#define EACH(attribute, f, name)                                                        \
    static attribute Pack name(Pack x) {                                                \
        Pack result;                                                                    \
        for (int l = 0; l < WIDTH; ++l) result[l] = f(x[l]);                            \
        return result;                                                                  \
    }
#define EACH_PAIR(attribute, f, name)                                                   \
    static attribute Pack name(Pack x, Pack y) {                                        \
        Pack result;                                                                    \
        for (int l = 0; l < WIDTH; ++l) result[l] = f(x[l], y[l]);                      \
        return result;                                                                  \
    }
#endif
"""

_LIBM_NAMES = """
    EXP LOG POW SIN COS TAN ASIN ACOS ATAN ATAN2 SINH COSH TANH ASINH ACOSH ATANH LOG1P EXPM1 ERF
    ERFINV FMOD REMAINDER HYPOT
"""
_LIBM = [Op[name] for name in _LIBM_NAMES.split()]
# Few instructions: always inlined, and vector instructions on the CPU.
_SHORT = r"""
struct Quick {
#if defined(__CUDA_ARCH__)
EACH(WHOLE, LIBM(sqrt), sqrt)
EACH(WHOLE, LIBM(floor), floor)
EACH(WHOLE, LIBM(ceil), ceil)
EACH(WHOLE, LIBM(fabs), fabs)
EACH_PAIR(WHOLE, LIBM(copysign), copysign)
EACH_PAIR(WHOLE, LIBM(fmin), fmin)
EACH_PAIR(WHOLE, LIBM(fmax), fmax)
#else
static Pack sqrt(Pack x) { return __builtin_elementwise_sqrt(x); }
static Pack floor(Pack x) { return __builtin_elementwise_floor(x); }
static Pack ceil(Pack x) { return __builtin_elementwise_ceil(x); }
static Pack fabs(Pack x) { return __builtin_elementwise_abs(x); }
static Pack copysign(Pack x, Pack y) { return __builtin_elementwise_copysign(x, y); }
// As in C: a NaN loses against a number.
static Pack fmin(Pack x, Pack y) { return ((x < y) | (y != y)) ? x : y; }
static Pack fmax(Pack x, Pack y) { return ((y < x) | (y != y)) ? x : y; }
#endif
};
"""
QUICK = ("sqrt", "floor", "ceil", "fabs", "copysign", "fmin", "fmax")


def _functions(struct: str, attribute: str) -> str:
    """A struct with all functions of libm."""
    lines = []
    for op in _LIBM:
        name = op.name.lower()
        function = "INVERSE_ERF" if op is Op.ERFINV else f"LIBM({name})"
        lines.append(f"{'EACH_PAIR' if op in BINARY else 'EACH'}({attribute}, {function}, {name})")
    return "\n".join([f"struct {struct} {{", *lines, "};\n"])


_CALLED = "#if defined(__CUDA_ARCH__)\n" + _functions("Called", "PART")
_CALLED += "#else\ntypedef Math Called;\n#endif\n"
_FUNCTIONS = _ATTRIBUTES + _SHORT + _functions("Math", "WHOLE") + _CALLED
# For each dtype what every kernel begins with,
TYPES = {
    dtype: f"{names}#define TINY {_TINY[dtype]}\n{DEFINE_INFINITE}{_TYPES}"
    for dtype, names in _NAMES.items()
}
# and the same with functions of packs, which precede the structs of `emit_native.struct_source`.
PREAMBLE = {dtype: types + _FUNCTIONS for dtype, types in TYPES.items()}
