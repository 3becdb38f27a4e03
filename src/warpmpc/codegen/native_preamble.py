"""What native text of `codegen.emit_native` builds upon: packs, memory access, functions.

One thread works on a `Pack`.  On CUDA that is one number of one problem.  On the CPU it is one
number for each problem of a tile, so that plain operations become vector instructions; other
functions are called lane by lane.

    GET(base, row), AT(base, row)   a row of a tile: read what nobody writes, or write
    ROW(slot)                       entry of the table of rows
    WHOLE, PART                     attributes of a function that is alone, or one of several
    CARRIED(count)                  declares ``carried``: what a part leaves for later ones
    Math                            functions of packs, named as in `codegen.ir.Op`
"""

from __future__ import annotations

# Warp's clang knows all of libm by its builtins, though Warp declares only some of it.
_NAMES = {
    "float32": """
#define SCALAR float
#if defined(__CUDA_ARCH__)
#define LIBM(name) ::name##f
#else
#define LIBM(name) __builtin_##name##f
#endif
#define INVERSE_ERF ::erfinvf
""",
    "float64": """
#define SCALAR double
#if defined(__CUDA_ARCH__)
#define LIBM(name) ::name
#else
#define LIBM(name) __builtin_##name
#endif
#define INVERSE_ERF ::erfinv
""",
}

# A function that is alone is inlined on CUDA, but not on the CPU, where Warp makes kernels twice.
_TEXT = r"""
typedef long long Offset;
#if defined(__CUDA_ARCH__)
typedef SCALAR Pack;
#define GET(base, row) __ldg((base) + (Offset)(row) * 32)
#define ROW(slot) __ldg(rows + (slot))
#define WHOLE __device__ __forceinline__
#define PART __device__ __noinline__
#define CARRIED(count) Pack carried[count];
#define RELEASE_CARRIED
#define EACH(f, name) static WHOLE Pack name(Pack x) { return f(x); }
#define EACH_PAIR(f, name) static WHOLE Pack name(Pack x, Pack y) { return f(x, y); }
#else
typedef SCALAR Pack __attribute__((ext_vector_type(32), aligned(sizeof(SCALAR))));
#define GET(base, row) (*(const Pack*)((base) + (Offset)(row) * 32))
#define ROW(slot) rows[slot]
#define WHOLE __attribute__((noinline))
#define PART __attribute__((noinline))
#define CARRIED(count) Pack* carried = (Pack*)malloc((count) * sizeof(Pack));
#define RELEASE_CARRIED free(carried);
#define EACH(f, name)                                                                   \
    static __attribute__((noinline)) Pack name(Pack x) {                                \
        Pack result;                                                                    \
        for (int l = 0; l < 32; ++l) result[l] = f(x[l]);                               \
        return result;                                                                  \
    }
#define EACH_PAIR(f, name)                                                              \
    static __attribute__((noinline)) Pack name(Pack x, Pack y) {                        \
        Pack result;                                                                    \
        for (int l = 0; l < 32; ++l) result[l] = f(x[l], y[l]);                         \
        return result;                                                                  \
    }
#endif
#define AT(base, row) (*(Pack*)((base) + (Offset)(row) * 32))
struct Math {
EACH(LIBM(exp), exp)
EACH(LIBM(log), log)
EACH(LIBM(sin), sin)
EACH(LIBM(cos), cos)
EACH(LIBM(tan), tan)
EACH(LIBM(asin), asin)
EACH(LIBM(acos), acos)
EACH(LIBM(atan), atan)
EACH(LIBM(sinh), sinh)
EACH(LIBM(cosh), cosh)
EACH(LIBM(tanh), tanh)
EACH(LIBM(asinh), asinh)
EACH(LIBM(acosh), acosh)
EACH(LIBM(atanh), atanh)
EACH(LIBM(log1p), log1p)
EACH(LIBM(expm1), expm1)
EACH(LIBM(erf), erf)
EACH(INVERSE_ERF, erfinv)
EACH_PAIR(LIBM(pow), pow)
EACH_PAIR(LIBM(fmod), fmod)
EACH_PAIR(LIBM(remainder), remainder)
EACH_PAIR(LIBM(atan2), atan2)
EACH_PAIR(LIBM(hypot), hypot)
#if defined(__CUDA_ARCH__)
EACH(LIBM(sqrt), sqrt)
EACH(LIBM(floor), floor)
EACH(LIBM(ceil), ceil)
EACH(LIBM(fabs), fabs)
EACH_PAIR(LIBM(copysign), copysign)
EACH_PAIR(LIBM(fmin), fmin)
EACH_PAIR(LIBM(fmax), fmax)
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


def preamble(dtype: str) -> str:
    """Definitions that precede the structs of `emit_native.struct_text`."""
    return _NAMES[dtype] + _TEXT
