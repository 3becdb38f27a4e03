"""Native text that precedes a whole MPC solve: lanes, memory, exchange; see `onchip_native`."""

from warpmpc.codegen.native_preamble import INVERT_PIVOT

# On CUDA the same flags without a branch, and the inverse from an estimate and one Newton step.
INVERT = rf"""
#if SINGLE && defined(__CUDA_ARCH__)
auto invert = [](float d) -> float {{
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(d));
    inverse = fmaf(inverse, fmaf(-d, inverse, 1.0f), inverse);
    inverse = fabsf(inverse) < TINY ? NAN : inverse;
    return fabsf(d) < TINY ? 0.0f : inverse;
}};
#else
{INVERT_PIVOT}
#endif
"""

HEAD = r"""
#if defined(__CUDA_ARCH__)
typedef SCALAR Lanes;
#define ALL 0xffffffffu
const int lane = thread & 31;
#if STATIC
__shared__ SCALAR memory[MEMORY_ROWS * 32];
#else
SCALAR* const memory = scratch.data.ptr;
#endif
#define EACH_LANE
#define OF_LANE(x) (x)
#define KEEP(i, name) name##i
// A zero that the compiler does not know: it would keep in registers what is saved.
int nothing = 0;
#define FORGET asm volatile("" : "+r"(nothing) :: "memory");
FORGET
#define SAVE_NOW(i, name, value) saved_##name[(i) + nothing] = value;
#define SAVE_LATE(i, name, value)
// What is taken back is not to be taken again: the loop would read it from memory every time.
#define LOAD(i, name) name##i = saved_##name[(i) + nothing]; OPAQUE(name##i)
#define FROM_BEFORE(i, to, name, h) to##i = __shfl_up_sync(ALL, name##i, h);
#define FROM_BEHIND(i, to, name, h) to##i = __shfl_down_sync(ALL, name##i, h);
#define UP(x, h) __shfl_up_sync(ALL, x, h)
#define DOWN(x, h) __shfl_down_sync(ALL, x, h)
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define ROLLED_BY_4 _Pragma("unroll 4")
#define ROLLED_BY_8 _Pragma("unroll 8")
#define SYNC __syncwarp();
#define BARRIER asm volatile("" ::: "memory");
#define CHIEF (lane == 0)
#define READ(base, place) __ldg((base) + (place))
// Entries of the table are asked for one round ahead.
#define FIRST_ENTRIES(i, table) int4 ahead##i = __ldg((const int4*)(table) + (i) * 32 + lane);
#define ENTRIES(i) const int4 entries##i = ahead##i;
#define NEXT_ENTRIES(i, next) ahead##i = __ldg((const int4*)(next) + (i) * 32 + lane);
#define ENTRY(i, letter, number) entries##i.letter
#define TERM(t) __ldg((const int4*)terms_in.data + (t))
#define ASK_FOR(address) asm volatile("prefetch.global.L1 [%0];" :: "l"(address));
#define NUMBER(pack) (pack)
#define ROW_OF_LANES(row) memory[(row) * 32 + lane]
#define MIN(a, b) LIBM(fmin)(a, b)
#define MAX(a, b) LIBM(fmax)(a, b)
#else
if (thread & 31) return;  // one thread does the whole problem
typedef SCALAR Lanes __attribute__((ext_vector_type(32), aligned(sizeof(SCALAR))));
SCALAR memory[MEMORY_ROWS * 32];
// Long bodies: turning them into vector instructions takes the compiler minutes.
#define EACH_LANE                                                                       \
    _Pragma("clang loop vectorize(disable) interleave(disable) unroll(disable)")        \
    for (int lane = 0; lane < 32; ++lane)
#define OF_LANE(x) (x)[lane]
#define KEEP(i, name) kept_##name[i][lane]
const int nothing = 0;
#define FORGET
#define SAVE_NOW(i, name, value)
#define SAVE_LATE(i, name, value) KEEP(i, name) = value;
#define LOAD(i, name)
#define FROM_BEFORE(i, to, name, h) \
    EACH_LANE kept_##to[i][lane] = kept_##name[i][lane < h ? lane : lane - h];
#define FROM_BEHIND(i, to, name, h) \
    EACH_LANE kept_##to[i][lane] = kept_##name[i][lane + h > 31 ? lane : lane + h];
auto up = [](Lanes x, int h) { for (int l = 31; l >= h; --l) x[l] = x[l - h]; return x; };
auto down = [](Lanes x, int h) { for (int l = 0; l + h < 32; ++l) x[l] = x[l + h]; return x; };
#define UP(x, h) up(x, h)
#define DOWN(x, h) down(x, h)
#define UNROLL _Pragma("clang loop unroll(disable)")
#define ROLLED
#define ROLLED_BY_4
#define ROLLED_BY_8
#define SYNC
#define BARRIER
#define CHIEF true
#define READ(base, place) (base)[place]
#define FIRST_ENTRIES(i, table)
#define ENTRIES(i) const int* entries##i = row + (i) * 128 + 4 * lane;
#define NEXT_ENTRIES(i, next)
#define ENTRY(i, letter, number) entries##i[number]
struct Term { int x, y, z, w; };
#define TERM(t) ((const Term*)terms_in.data)[t]
#define ASK_FOR(address)
#define NUMBER(pack) (pack)[0]
#define ROW_OF_LANES(row) (*(Lanes*)(memory + (row) * 32))
#define MIN(a, b) ((b) < (a) ? (b) : (a))
#define MAX(a, b) ((a) < (b) ? (b) : (a))
#endif
KEPT_NUMBERS
#define MEM(row) memory[(row) * 32 + lane]
#define IF_BEFORE(x) (lane > 0 ? (x) : (SCALAR)0)
#define IF_BEHIND(x) (lane < 31 ? (x) : (SCALAR)0)
#define INFINITE (SCALAR)1e20
// Where the time goes, for those who ask: cycles of each phase, over 64.
#if PROFILE && defined(__CUDA_ARCH__)
int last_clock = (int)(clock64() >> 6);
#define CLOCK(i) if (lane == 0) { \
    const int now = (int)(clock64() >> 6); status_of[2 + i] += now - last_clock; last_clock = now; }
#else
#define CLOCK(i)
#endif
// Sums and largest numbers of all lanes.
auto summed = [&](Lanes x) -> SCALAR {
#if defined(__CUDA_ARCH__)
    #pragma unroll
    for (int h = 16; h > 0; h >>= 1) x += __shfl_xor_sync(ALL, x, h);
    return x;
#else
    for (int h = 16; h > 0; h >>= 1) for (int l = 0; l < h; ++l) x[l] += x[l + h];
    return x[0];
#endif
};
auto largest = [&](Lanes x) -> SCALAR {
#if defined(__CUDA_ARCH__)
    #pragma unroll
    for (int h = 16; h > 0; h >>= 1) {
        const SCALAR other = __shfl_xor_sync(ALL, x, h);
        x = MAX(x, other);
    }
    return x;
#else
    for (int l = 1; l < 32; ++l) x[0] = MAX(x[0], x[l]);
    return x[0];
#endif
};
"""
