"""Native source before the body of an on-chip solve: lanes, memory, exchange between lanes."""

from warpmpc.codegen.native.preamble import INVERT_PIVOT

# On CUDA the same flags are set without a branch, and one Newton step refines an estimate.
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

# Library functions have slow paths for rare arguments: an exact division calls a subroutine where
# its numerator is zero, and a sine has a hundred instructions for large angles, which warps fetch
# even if they jump over them.  Here rare paths are separate functions; quotients and roots have an
# error of up to two units in the last place.
FUNCTIONS = r"""
#if SINGLE && defined(__CUDA_ARCH__)
struct Near : Math {
    static __device__ __forceinline__ float quotient(float a, float b) {
        float found;
        asm("div.full.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
        return found;
    }
    static __device__ __forceinline__ float root(float x) {
        float found;
        asm("sqrt.approx.f32 %0, %1;" : "=f"(found) : "f"(x));
        return found;
    }
    // An angle is a multiple of pi / 2 plus a remainder; both functions are polynomials in it.
    static __device__ __forceinline__ void parts(float x, int& turns, float& sine, float& cosine) {
        const float nearest = rintf(x * 0.636619772f);
        turns = (int)nearest;
        float r = fmaf(nearest, -1.57079625f, x);
        r = fmaf(nearest, -7.54978942e-8f, r);
        r = fmaf(nearest, -5.39030295e-15f, r);
        const float square = r * r;
        sine = fmaf(fmaf(-1.95152959e-4f, square, 8.33216087e-3f), square, -1.66666546e-1f);
        sine = fmaf(sine * square, r, r);
        cosine = fmaf(fmaf(2.44331571e-5f, square, -1.38873162e-3f), square, 4.16666457e-2f);
        cosine = fmaf(fmaf(cosine, square, -0.5f), square, 1.0f);
    }
    static __device__ __forceinline__ bool is_near(float x) { return fabsf(x) < 1e5f; }
    static __device__ __forceinline__ float sin(float x) {
        int turns;
        float sine, cosine;
        parts(x, turns, sine, cosine);
        const float found = turns & 1 ? cosine : sine;
        const float signed_found = turns & 2 ? -found : found;
        return is_near(x) ? signed_found : Called::sin(x);
    }
    static __device__ __forceinline__ float cos(float x) {
        int turns;
        float sine, cosine;
        parts(x, turns, sine, cosine);
        const float found = turns & 1 ? sine : cosine;
        const float signed_found = (turns + 1) & 2 ? -found : found;
        return is_near(x) ? signed_found : Called::cos(x);
    }
    static __device__ __forceinline__ float tan(float x) {
        int turns;
        float sine, cosine;
        parts(x, turns, sine, cosine);
        const float found = turns & 1 ? quotient(-cosine, sine) : quotient(sine, cosine);
        return is_near(x) ? found : Called::tan(x);
    }
};
#undef DIVIDED
#define DIVIDED(a, b) Near::quotient(a, b)
#define ROOT(x) Near::root(x)
#define Math Near
#else
#define ROOT(x) LIBM(sqrt)(x)
#endif
"""

HEAD = r"""
#if defined(__CUDA_ARCH__)
typedef SCALAR Lanes;
#define ALL 0xffffffffu
const int lane = thread & 31;
// Problems of a block are independent.
#if TOGETHER > 1
const int place_in_block = threadIdx.x >> 5;
#else
const int place_in_block = 0;
#endif
#if STATIC
__shared__ alignas(16) SCALAR memory_of_block[TOGETHER * MEMORY_ROWS * 32];
SCALAR* const memory = memory_of_block + place_in_block * (MEMORY_ROWS * 32);
#else
SCALAR* const memory = scratch.data.ptr + place_in_block * (MEMORY_ROWS * 32);
#endif
#define EACH_LANE
#define OF_LANE(x) (x)
#define KEEP(i, name) name##i
// A zero that the compiler cannot know; otherwise it would keep saved values in registers.
int nothing = 0;
#define FORGET asm volatile("" : "+r"(nothing) :: "memory");
FORGET
#define SAVE(i, name, value) saved_##name[(i) + nothing] = value;
#define SAVE_ROW(i, name, value) SAVE(i, name, value)
#define SAVED(i, name) saved_##name[(i) + nothing]
#define SAVE_LATE(i, name, value)
#if KEEPS_FACTOR
#define SAVE_NOW(i, name, value) KEEP(i, name) = value;
#define LOAD(i, name)
#else
#define SAVE_NOW(i, name, value) SAVE(i, name, value)
#define LOAD(i, name) LOAD_AS(i, name, i, name)
#endif
// A loaded value is not loaded again: the loop would read it from memory every time.
#define LOAD_AS(i, name, j, saved) name##i = saved_##saved[(j) + nothing]; OPAQUE(name##i)
#define FROM_BEFORE(i, to, name, h) to##i = __shfl_up_sync(ALL, name##i, h);
#define FROM_BEHIND(i, to, name, h) to##i = __shfl_down_sync(ALL, name##i, h);
#define FROM_ACROSS(i, to, name, h) to##i = __shfl_xor_sync(ALL, name##i, h);
#define UP(x, h) __shfl_up_sync(ALL, x, h)
#define DOWN(x, h) __shfl_down_sync(ALL, x, h)
#define ACROSS(x, h) __shfl_xor_sync(ALL, x, h)
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define ROLLED_BY_8 _Pragma("unroll 8")
#define SYNC __syncwarp();
#define CHIEF (lane == 0)
// The constant part of an address goes into the instruction, so the sum is written in this order.
#define READ(base, place) __ldg((base) + place)
// Entries of tables are fetched long before they are used; PIN keeps the load from moving up.
#define PIN(x) asm volatile("" : "+r"(x));
#define AHEAD(name, i) int4 name##i;
// Without this, prefetched entries would occupy registers through a whole iteration.
#define FORGET_ENTRIES(name, i) name##i = make_int4(0, 0, 0, 0);
#define ASK(name, i, table) name##i = __ldg((const int4*)(table) + (i) * 32 + lane);
#define ENTRIES(name, i, table)                                                             \
    int4 entries##i = name##i;                                                              \
    PIN(entries##i.x) PIN(entries##i.y) PIN(entries##i.z) PIN(entries##i.w)
#define ENTRY(i, letter, number) entries##i.letter
// Rows of an array of the caller, zero beyond its end: first into registers, then into the copy.
#define TAKE(array, rows, count)                                                            \
    SCALAR part_of_##array[(rows) + 1];                                                     \
    UNROLL for (int i = 0; i < (rows); ++i) part_of_##array[i] = OF_ARRAY(array, i, count);
#define PUT(section, array, first, rows, count)                                             \
    UNROLL for (int i = 0; i < (rows); ++i) COPY(section, (first) + i) = part_of_##array[i];
#define HOLD(array, first, rows, count)                                                     \
    UNROLL for (int i = 0; i < (rows); ++i)                                                 \
        if (i * 32 + lane < (count)) PARAMETERS[(first) + i * 32 + lane] = part_of_##array[i];
#define OF_LINE (128 / (int)sizeof(SCALAR))
#define ASK_LATER(array, count)                                                             \
    ROLLED for (int i = OF_LINE * lane; i < (count); i += OF_LINE * 32)                     \
        asm volatile("prefetch.global.L2 [%0];" :: "l"((array) + i));
#define AHEAD_LACKS(word) int lacks##word;
#define ASK_LACKS(word) lacks##word = READ(absent_in.data, (word) * 32 + lane);
#define LACKS(word) lacks##word
#define NUMBER(pack) (pack)
#define ROW_OF_LANES(row) memory[(row) * 32 + lane]
#else
if (thread & 31) return;  // one thread solves the whole problem
typedef SCALAR Lanes __attribute__((ext_vector_type(32), aligned(sizeof(SCALAR))));
alignas(64) SCALAR memory[MEMORY_ROWS * 32];
// Vectorising these long bodies would take the compiler minutes.
#define EACH_LANE                                                                       \
    _Pragma("clang loop vectorize(disable) interleave(disable) unroll(disable)")        \
    for (int lane = 0; lane < 32; ++lane)
#define OF_LANE(x) (x)[lane]
#define KEEP(i, name) kept_##name[i][lane]
const int nothing = 0;
#define FORGET
#define SAVE_NOW(i, name, value)
#define SAVE_LATE(i, name, value) KEEP(i, name) = value;
#define SAVE(i, name, value) KEEP(i, name) = value;
#define SAVE_ROW(i, name, value) *(Lanes*)kept_##name[i] = value;
#define SAVED(i, name) KEEP(i, name)
#define LOAD(i, name)
#define LOAD_AS(i, name, j, saved)
#define FROM_BEFORE(i, to, name, h) \
    EACH_LANE kept_##to[i][lane] = kept_##name[i][lane < h ? lane : lane - h];
#define FROM_BEHIND(i, to, name, h) \
    EACH_LANE kept_##to[i][lane] = kept_##name[i][lane + h > 31 ? lane : lane + h];
#define FROM_ACROSS(i, to, name, h) \
    EACH_LANE kept_##to[i][lane] = kept_##name[i][lane ^ h];
auto up = [](Lanes x, int h) { for (int l = 31; l >= h; --l) x[l] = x[l - h]; return x; };
auto down = [](Lanes x, int h) { for (int l = 0; l + h < 32; ++l) x[l] = x[l + h]; return x; };
auto across = [](Lanes x, int h) {
    Lanes y;
    for (int l = 0; l < 32; ++l) y[l] = x[l ^ h];
    return y;
};
#define UP(x, h) up(x, h)
#define DOWN(x, h) down(x, h)
#define ACROSS(x, h) across(x, h)
#define UNROLL _Pragma("clang loop unroll(disable)")
#define ROLLED
#define ROLLED_BY_8
#define SYNC
#define CHIEF true
#define READ(base, place) (base)[place]
#define PIN(x)
#define AHEAD(name, i)
#define FORGET_ENTRIES(name, i)
#define ASK(name, i, table)
#define ENTRIES(name, i, table) const int* entries##i = (table) + (i) * 128 + 4 * lane;
#define ENTRY(i, letter, number) entries##i[number]
#define TAKE(array, rows, count)
#define PUT(section, array, first, rows, count)                                             \
    UNROLL for (int i = 0; i < (rows); ++i)                                                 \
        COPY(section, (first) + i) = OF_ARRAY(array, i, count);
#define HOLD(array, first, rows, count)                                                     \
    for (int i = lane; i < (count); i += 32) PARAMETERS[(first) + i] = array[i];
#define ASK_LATER(array, count)
#define AHEAD_LACKS(word)
#define ASK_LACKS(word)
#define LACKS(word) absent_in.data[(word) * 32 + lane]
#define NUMBER(pack) (pack)[0]
#define ROW_OF_LANES(row) (*(Lanes*)(memory + (row) * 32))
#endif
KEPT_NUMBERS
#define PARAMETERS (memory + PAR_ROWS * 32)
#define MEM(row) memory[(row) * 32 + lane]
// Four rows at a time: a lane also clears values of other lanes.
struct alignas(16) Four { SCALAR numbers[4]; };
#define CLEAR(first, count)                                                                 \
    UNROLL for (int i = 0; i < (count) / 4; ++i)                                            \
        ((Four*)(memory + (first) * 32))[i * 32 + lane] = Four{{0, 0, 0, 0}};               \
    UNROLL for (int row = (count) / 4 * 4; row < (count); ++row) MEM((first) + row) = 0;
// A copy of arrays of the caller in a section, 32 values per row; `LaneMemory.in_copy` has the
// place of each one.
#define COPY_AT(section, place) (*(SCALAR*)((char*)(memory + section##_ROWS * 32) + (place)))
// ``nothing`` keeps the places from staying in registers between the first copy and the last.
#define COPY(section, row) \
    COPY_AT(section, ((row) * 32 + ((lane + nothing) ^ ((row) & 31))) * (int)sizeof(SCALAR))
#define OF_ARRAY(array, row, count) \
    ((row) * 32 + lane < (count) ? array[(row) * 32 + lane] : (SCALAR)0)
#define GIVE_BACK(section, array, first, rows, count)                                       \
    UNROLL for (int i = 0; i < (rows); ++i)                                                 \
        if (i * 32 + lane < (count)) array[i * 32 + lane] = COPY(section, (first) + i);
#define IF_BEFORE(x) (lane > 0 ? (x) : (SCALAR)0)
#define IF_BEHIND(x) (lane < 31 ? (x) : (SCALAR)0)
// Profiling: cycles of each phase, divided by 64.
#if PROFILE && defined(__CUDA_ARCH__)
// The counters are in shared memory, because registers are scarce and other memory would disturb
// the measurement.  Every eighth lane has the same counters, which avoids a branch; lane i counts
// phase i.
static_assert(PHASES <= 8, "");
__shared__ unsigned clocks[TOGETHER][2][8];
volatile unsigned* const counted = clocks[place_in_block][0] + (lane & 7);
volatile unsigned* const ended = clocks[place_in_block][1] + (lane & 7);  // end of the last phase
*counted = 0;
*ended = (unsigned)clock();
#define CLOCK(i) {                                      \
    const unsigned now = (unsigned)clock();             \
    const unsigned spent = (now - *ended) >> 6;         \
    *counted += (lane & 7) == (i) ? spent : 0;          \
    *ended = now; }
#define WRITE_CLOCKS if (lane < PHASES) status_of[2 + lane] = (int)*counted;
#else
#define CLOCK(i)
#define WRITE_CLOCKS if (PROFILE) for (int i = 0; i < PHASES; ++i) status_of[2 + i] = 0;
#endif
// Whether a value is zero in all lanes; the sum, and the largest of values that are not negative.
auto is_zero = [&](Lanes x) -> bool {
#if defined(__CUDA_ARCH__)
    return __all_sync(ALL, x == 0);
#else
    bool found = true;
    for (int l = 0; l < 32; ++l) found &= x[l] == 0;
    return found;
#endif
};
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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && SINGLE
    // Floating-point values that are not negative are ordered like their bits.
    return __int_as_float(__reduce_max_sync(ALL, __float_as_int(x)));
#elif defined(__CUDA_ARCH__)
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
