"""What runs kernels on the CPU: a handler of foreign calls of XLA, and threads that share a launch.

Reads: entries of kernels (`KernelSource.entry`) and the structures of XLA's C interface for foreign
functions.  Produces: the body of a native function that leaves the addresses of its own functions.
No line of Python runs between XLA and a kernel, so that a launch costs a microsecond.

A launch is cut into pieces of `step` threads.  Whoever has time takes the next few of them, so that
pieces may take different times; what a piece computes does not depend on who runs it.  The thread
that XLA calls takes part.  Helpers sleep until there is work, watch for more of it for some
microseconds after it, and stay away while as many threads are at work as there may be: several
solvers, or threads of the user, share them.  A launch that is known to be short is not shared.

A forked process has no helpers and gets new ones with its first shared launch.
"""

from __future__ import annotations

# Order of the addresses that the function takes, and of those that it leaves.
IMPORTS = (
    "pthread_create",
    "pthread_join",
    "pthread_mutex_init",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_cond_init",
    "pthread_cond_wait",
    "pthread_cond_signal",
    "pthread_cond_broadcast",
    "getpid",
    "clock_gettime",
    "madvise",
    "malloc",
)
EXPORTS = ("handle", "put", "set_limit", "stop", "count", "spent", "launch")

# Kinds of arguments in the attribute `plan`, behind its key, number of threads, step and count.
NUMBER, OPERAND, RESULT = 0, 1, 2
MOST_ARGUMENTS = 64

_DISPATCHER = r"""
#define WATCHED 20000         // nanoseconds that a helper watches for work before it sleeps
#define SHORT 30000.0f        // nanoseconds of a launch that is not worth sharing
#define PARTS_PER_THREAD 16   // how often a thread comes back for pieces, about
typedef long long Int64;
typedef int Int;  // a macro of Warp takes `int` before a parenthesis
typedef unsigned long long Address;
struct Dispatcher {
    // XLA's structures, xla/ffi/api/c_api.h.
    struct Extension { Address size; int type; Extension* next; };
    struct Version { Address size; Extension* extension; int major, minor; };
    struct Metadata { Address size; Version version; unsigned traits; };
    struct MetadataExtension { Extension base; Metadata* metadata; };
    struct Span { const char* text; Address size; };
    struct Buffer { Address size; Extension* extension; int dtype; void* data; Int64 rank; Int64* dims; };
    struct Arguments { Address size; Extension* extension; Int64 count; int* types; Buffer** buffers; };
    struct Array { int dtype; Address count; const Int64* data; };
    struct Attributes {
        Address size; Extension* extension; Int64 count; int* types; Span** names; void** values;
    };
    struct ErrorArguments { Address size; Extension* extension; const char* message; int code; };
    struct Interface {
        Address size; Extension* extension; Version version; void* internal;
        void* (*create_error)(ErrorArguments*);
    };
    struct Frame {
        Address size; Extension* extension; const Interface* interface; void* context; int stage;
        Arguments arguments, results; Attributes attributes; void* future;
    };

    typedef void (*Range)(void** given, int first, int last);
    struct Given { void* data; int shape[3]; };
    struct Entry { Int64 key; Range range; float nanoseconds; };  // of a piece, 0: unknown
    struct Table { Int64 size, used; Entry* entries; };
    struct Job {
        Range range; void** given; int step, pieces, grain; int next, helpers; Job* behind;
    };
    struct Time { Int64 seconds, nanoseconds; };

    struct Imports {
        Int (*create)(Address*, const void*, void* (*)(void*), void*);
        Int (*join)(Address, void**);
        Int (*init_mutex)(void*, const void*);
        Int (*lock)(void*);
        Int (*unlock)(void*);
        Int (*init_condition)(void*, const void*);
        Int (*wait)(void*, void*);
        Int (*signal)(void*);
        Int (*broadcast)(void*);
        Int (*process)();
        Int (*clock)(int, Time*);
        Int (*advise)(void*, Address, int);
        void* (*allocate)(Address);
    };
    enum { MOST_THREADS = 1024 };
    struct State {
        Imports call;
        Table* table;
        int process, resetting;  // whose helpers there are
        int limit;               // threads that may be at work
        int running;             // threads at work, callers included
        int helpers;             // that have been started
        int posted;              // jobs so far, for helpers that watch
        int stopping;
        Int64 spent;             // nanoseconds of all launches
        Job* jobs;
        Address threads[MOST_THREADS];
        alignas(64) char mutex[128];
        alignas(64) char work[128];  // conditions: there is a job; a job may be finished
        alignas(64) char done[128];
    };
    static State& state() {
        static State only;
        return only;
    }

    static void pause() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }
    static Int64 ticks() {
        Time time;
        state().call.clock(1, &time);
        return time.seconds * 1000000000ll + time.nanoseconds;
    }

    // Entries are found without a lock: a table that is full is copied, and the old one stays.
    static Entry* find(Int64 key) {
        const Table* table = __atomic_load_n(&state().table, __ATOMIC_ACQUIRE);
        if (!table) return nullptr;
        for (Int64 i = key & (table->size - 1);; i = (i + 1) & (table->size - 1)) {
            const Int64 found = __atomic_load_n(&table->entries[i].key, __ATOMIC_ACQUIRE);
            if (found == key) return &table->entries[i];
            if (!found) return nullptr;
        }
    }
    static void insert(Table* table, Int64 key, Range range) {
        Int64 i = key & (table->size - 1);
        while (table->entries[i].key) i = (i + 1) & (table->size - 1);
        table->entries[i].range = range;
        table->entries[i].nanoseconds = 0;
        __atomic_store_n(&table->entries[i].key, key, __ATOMIC_RELEASE);
        ++table->used;
    }
    // Makes an entry known under a key that is not zero.
    static void put(Int64 key, Range range) {
        State& s = state();
        notice_fork();
        s.call.lock(s.mutex);
        if (Entry* entry = find(key)) {
            __atomic_store_n(&entry->range, range, __ATOMIC_RELEASE);
            s.call.unlock(s.mutex);
            return;
        }
        if (!s.table || 2 * s.table->used >= s.table->size) {
            const Int64 size = s.table ? 2 * s.table->size : 1024;
            Table* table = (Table*)s.call.allocate(sizeof(Table));
            table->size = size;
            table->used = 0;
            table->entries = (Entry*)s.call.allocate(size * sizeof(Entry));
            for (Int64 i = 0; i < size; ++i) table->entries[i] = Entry{0, nullptr, 0};
            if (s.table)
                for (Int64 i = 0; i < s.table->size; ++i)
                    if (s.table->entries[i].key)
                        insert(table, s.table->entries[i].key, s.table->entries[i].range);
            __atomic_store_n(&s.table, table, __ATOMIC_RELEASE);
        }
        insert(s.table, key, range);
        s.call.unlock(s.mutex);
    }

    static void set_limit(int limit) { __atomic_store_n(&state().limit, limit, __ATOMIC_RELAXED); }
    static int count() { return state().helpers; }
    static Int64 spent() { return state().spent; }

    static void prepare() {
        State& s = state();
        s.call.init_mutex(s.mutex, nullptr);
        s.call.init_condition(s.work, nullptr);
        s.call.init_condition(s.done, nullptr);
        s.helpers = s.running = s.stopping = 0;
        s.jobs = nullptr;
        __atomic_store_n(&s.process, s.call.process(), __ATOMIC_RELEASE);
    }
    // Helpers stay behind in the process that was forked, and whoever held the lock there, too.
    static void notice_fork() {
        State& s = state();
        const int mine = s.call.process();
        if (__atomic_load_n(&s.process, __ATOMIC_ACQUIRE) == mine) return;
        int before = s.resetting;
        if (before != mine && __atomic_compare_exchange_n(
                &s.resetting, &before, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            prepare();
            return;
        }
        while (__atomic_load_n(&s.process, __ATOMIC_ACQUIRE) != mine) pause();
    }

    // Takes pieces until none is left; a helper also leaves when others need its place.
    static int take(Job* job, bool helps) {
        State& s = state();
        int taken = 0;
        for (;;) {
            const int first = __atomic_fetch_add(&job->next, job->grain, __ATOMIC_RELAXED);
            if (first >= job->pieces) return taken;
            const int left = job->pieces - first, count = left < job->grain ? left : job->grain;
            job->range(job->given, first * job->step, (first + count) * job->step);
            taken += count;
            if (helps && __atomic_load_n(&s.running, __ATOMIC_RELAXED) >
                    __atomic_load_n(&s.limit, __ATOMIC_RELAXED))
                return taken;
        }
    }
    static Job* unfinished() {
        for (Job* job = state().jobs; job; job = job->behind)
            if (__atomic_load_n(&job->next, __ATOMIC_RELAXED) < job->pieces) return job;
        return nullptr;
    }
    static void* help(void*) {
        State& s = state();
        s.call.lock(s.mutex);
        while (!s.stopping) {
            Job* job = s.running < s.limit ? unfinished() : nullptr;
            if (job) {
                ++job->helpers;
                __atomic_add_fetch(&s.running, 1, __ATOMIC_RELAXED);
                s.call.unlock(s.mutex);
                take(job, true);
                s.call.lock(s.mutex);
                __atomic_sub_fetch(&s.running, 1, __ATOMIC_RELAXED);
                if (__atomic_sub_fetch(&job->helpers, 1, __ATOMIC_RELEASE) == 0)
                    s.call.broadcast(s.done);
                continue;
            }
            // Launches follow each other: waking up takes longer than watching for a moment.
            const int seen = s.posted;
            s.call.unlock(s.mutex);
            const Int64 until = ticks() + WATCHED;
            while (__atomic_load_n(&s.posted, __ATOMIC_RELAXED) == seen && ticks() < until)
                for (int i = 0; i < 32; ++i) pause();
            s.call.lock(s.mutex);
            if (s.posted == seen && !s.stopping) s.call.wait(s.work, s.mutex);
        }
        s.call.unlock(s.mutex);
        return nullptr;
    }
    // With the lock held.
    static void start_helpers(int wanted) {
        State& s = state();
        while (s.helpers < wanted && s.helpers < MOST_THREADS) {
            if (s.call.create(&s.threads[s.helpers], nullptr, help, nullptr)) return;
            ++s.helpers;
        }
    }
    // Ends all helpers; the next shared launch starts new ones.
    static void stop() {
        State& s = state();
        notice_fork();
        s.call.lock(s.mutex);
        s.stopping = 1;
        ++s.posted;
        s.call.broadcast(s.work);
        const int helpers = s.helpers;
        s.call.unlock(s.mutex);
        for (int i = 0; i < helpers; ++i) s.call.join(s.threads[i], nullptr);
        s.call.lock(s.mutex);
        s.helpers = s.stopping = 0;
        s.call.unlock(s.mutex);
    }

    static void share(Job* job, int limit) {
        State& s = state();
        s.call.lock(s.mutex);
        start_helpers(limit - 1);
        job->behind = s.jobs;
        s.jobs = job;
        __atomic_add_fetch(&s.running, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&s.posted, 1, __ATOMIC_RELAXED);
        const int wanted = (job->pieces + job->grain - 1) / job->grain - 1;
        if (wanted == 1) s.call.signal(s.work);
        else s.call.broadcast(s.work);
        s.call.unlock(s.mutex);
        take(job, false);
        for (int i = 0; i < 2000 && __atomic_load_n(&job->helpers, __ATOMIC_ACQUIRE); ++i) pause();
        s.call.lock(s.mutex);
        Job** place = &s.jobs;
        while (*place != job) place = &(*place)->behind;
        *place = job->behind;
        while (__atomic_load_n(&job->helpers, __ATOMIC_ACQUIRE)) s.call.wait(s.done, s.mutex);
        __atomic_sub_fetch(&s.running, 1, __ATOMIC_RELAXED);
        if (s.jobs) s.call.broadcast(s.work);  // a place is free
        s.call.unlock(s.mutex);
    }

    // Problems that have ended cost nothing: the next launch may have others.
    static void expect(Entry* entry, Int64 begin, int threads, int pieces) {
        const Int64 elapsed = ticks() - begin;
        __atomic_add_fetch(&state().spent, elapsed, __ATOMIC_RELAXED);
        const float spent = (float)elapsed * threads / pieces + 1, before = entry->nanoseconds;
        entry->nanoseconds = spent > before ? spent : 0.9f * before + 0.1f * spent;
    }
    // Runs `threads` threads of an entry, `step` of which are a piece.
    static void run(Entry* entry, void** given, int threads, int step) {
        State& s = state();
        const int pieces = (threads + step - 1) / step;
        const int limit = __atomic_load_n(&s.limit, __ATOMIC_RELAXED);
        const float expected = entry->nanoseconds * pieces;
        Job job = {entry->range, given, step, pieces, pieces, 0, 0, nullptr};
        const Int64 begin = ticks();
        if (limit > 1 && pieces > 1 && (expected == 0 || expected > SHORT)) {
            notice_fork();
            const int grain = pieces / (limit * PARTS_PER_THREAD);
            job.grain = grain > 1 ? grain : 1;
            share(&job, limit);
            expect(entry, begin, limit, pieces);
        } else {
            __atomic_add_fetch(&s.running, 1, __ATOMIC_RELAXED);
            take(&job, false);
            __atomic_sub_fetch(&s.running, 1, __ATOMIC_RELAXED);
            expect(entry, begin, 1, pieces);
        }
    }

    // For tests and measurements: the same without XLA.
    static int launch(Int64 key, void** given, int threads, int step) {
        Entry* entry = find(key);
        if (!entry) return 1;
        run(entry, given, threads, step);
        return 0;
    }

    static void* failed(const Frame* frame, const char* message) {
        ErrorArguments error = {sizeof(ErrorArguments), nullptr, message, 13};
        return frame->interface->create_error(&error);
    }
    static void* handle(Frame* frame) {
        for (Extension* e = frame->extension; e; e = e->next)
            if (e->type == 1) {
                Version& version = ((MetadataExtension*)e)->metadata->version;
                version.major = 0;
                version.minor = 1;
                return nullptr;
            }
        const Attributes& attributes = frame->attributes;
        if (attributes.count != 1 || attributes.types[0] != 1)
            return failed(frame, "warpmpc: this launch comes from another version.");
        const Int64* plan = ((const Array*)attributes.values[0])->data;
        Entry* entry = find(plan[0]);
        if (!entry) return failed(frame, "warpmpc: the kernel of this launch is not loaded.");
        const int count = (int)plan[3];
        Given arrays[MOST_ARGUMENTS];
        int numbers[MOST_ARGUMENTS];
        void* given[MOST_ARGUMENTS];
        for (int i = 0; i < count; ++i) {
            const Int64 kind = plan[4 + 2 * i], value = plan[5 + 2 * i];
            if (kind == 0) {
                numbers[i] = (int)value;
                given[i] = numbers + i;
                continue;
            }
            const Buffer* buffer = (kind == 1 ? frame->arguments : frame->results).buffers[value];
            arrays[i].data = buffer->data;
            for (int d = 0; d < 3; ++d) arrays[i].shape[d] = d < buffer->rank ? (int)buffer->dims[d] : 0;
            given[i] = arrays + i;
        }
        run(entry, given, (int)plan[1], (int)plan[2]);
        return nullptr;
    }
};
Dispatcher::State& s = Dispatcher::state();
if (!s.call.create) {
    for (int i = 0; i < (int)(sizeof(Dispatcher::Imports) / sizeof(void*)); ++i)
        ((Int64*)&s.call)[i] = imports_in.data[i];
    s.limit = 1;
    s.resetting = s.call.process();
    Dispatcher::prepare();
}
@EXPORTS@
"""

# The module of the kernel that takes addresses of `IMPORTS` and writes those of `EXPORTS`.
MODULE = '''"""Kernels on the CPU: foreign calls of XLA, and threads that share a launch.

Generated by warpmpc; do not edit.  Content {key}.
"""

import warp as wp

BODY = r"""
{body}
"""


@wp.func_native(BODY)
def begin(imports_in: wp.array1d(dtype=wp.int64), exports_out: wp.array1d(dtype=wp.int64)): ...


@wp.kernel(module="unique", enable_backward=False)
def dispatcher(
    # In:
    imports_in: wp.array1d(dtype=wp.int64),
    # Out:
    exports_out: wp.array1d(dtype=wp.int64),
):
    begin(imports_in, exports_out)
'''

_EXPORTED = "\n".join(
    f"exports_out.data[{i}] = (Int64)&Dispatcher::{name};" for i, name in enumerate(EXPORTS)
)
BODY = f"#define MOST_ARGUMENTS {MOST_ARGUMENTS}\n" + _DISPATCHER.replace("@EXPORTS@", _EXPORTED)
