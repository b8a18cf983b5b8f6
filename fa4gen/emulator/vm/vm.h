/* The machine: clusters of CTAs of warps over 32-lane registers. One file per concept implements it. */
#ifndef FA4GEN_VM_H
#define FA4GEN_VM_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "opcodes.h"
#include "program.h"

#define FULL 0xffffffffu
#define LANES for (int l = 0; l < 32; l++)
#define EACH(mask) for (u32 m_ = (mask), l = 0; m_ && (l = __builtin_ctz(m_), 1); m_ &= m_ - 1)
#define SHARED_WINDOW (1ull << 62) /* generic addresses that no host pointer can have */
#define PARAM_WINDOW (1ull << 61)
/* the first 1024 bytes of the window belong to the system (measured on Hopper) */
#define SHARED_BASE 0x400u
#define MAX_BARS 128
#define NAMED_BARRIERS 16
#define TMEM_COLUMNS 512

/* ---- synchronisation objects ---- */
typedef struct {
  u32 address; /* offset in its CTA's window; 0 = free */
  u32 live, expected, pending;
  i64 tx;
  u32 phase, base; /* absolute phases; parity = phase - base */
  u16 comp, init_warp;
  u32 init_clock;
  i32 init_pc;
  u64 arrived, arrived_before; /* warps of the CTA that arrived, bit by warp in cluster (64 at most) */
  u32 waiting; /* parked warps on it, number */
  u32 *acc, *done, *cum; /* vector clocks */
  u32 wait_clock[2][64]; /* clock at which each warp waited successfully, by phase parity */
  u32 wait_phase[2][64];
} Bar;

typedef struct {
  u32 arrived, expected;
  u64 waiting, members;
  u32* acc;
} Named;

struct Cta;
struct Cluster;

typedef struct {
  u32 wclock;
  u16 wcomp;
  u8 wmask, wflags;
  i32 wpc;
  struct {
    u32 clock;
    u16 comp, pad;
    i32 pc;
  } r[4];
} Cell;

typedef struct {
  const u32* vc;
  u32 comp, clock;
  i32 pc, warp, lane;
  u32 async; /* 1: by the asynchronous proxy; ASYNC_LENIENT: and what it reads may never have been written */
} Actor;
enum { ASYNC_LENIENT = 2, BY_BARRIER = 4 /* the initialisation of a barrier */ };

/* components of a vector clock that every warp owns */
enum {
  C_GENERIC,
  C_FENCED,
  C_INIT,
  C_TLD,
  C_TST,
  C_PIPE,
  C_BULK,
  C_WGMMA,
  C_CPASYNC,
  C_EXECUTED,
  C_PER_WARP
};

enum { READY, ON_MBAR, ON_NAMED, ON_CLUSTER, POLLING, EXITED };

/* which operations of a stream of commit groups a thread has not waited for (races only) */
typedef struct {
  u32 lane, group, clock;
} LogEntry;
typedef struct {
  LogEntry* entries;
  i32 n, capacity;
} Log;

/* a tensor memory load whose registers have not all been consumed: where it read, how many are left (races
 * only) */
#define PENDING_LOADS 255
typedef struct {
  u32 seq, left;
  u8 lane, rows;
  u16 column, span;
} PendingLoad;

typedef struct Warp {
  struct Cta* cta;
  char* regs;
  i32 index, id; /* in the CTA, in the cluster */
  u32 live, active, parked;
  i32 pc, other_pc; /* smallest pc of the live lanes outside `active` */
  i32 lane_pc[32];
  i32 status, timed_out;
  Bar* bar;
  u32 want, seen; /* parity waited for; phase of the barrier when it began to wait */
  i32 named;
  u64 stamp; /* progress seen when it began to poll */
  u32 cluster_arrived, cluster_phase;
  u64 executed;
  i32 maxnreg, maxnreg_pc;
  /* asynchronous streams of this warp */
  u32 clock[C_PER_WARP];
  u32 bulk_group[32], cp_group[32], wg_group; /* committed groups, per lane; of the warp */
  struct TstOp* tst;
  i32 ntst, captst;
  /* races only */
  u32 *vc, *fence;
  u8* ldmap; /* pending tensor memory load per register slot */
  PendingLoad loads[PENDING_LOADS];
  i32 ld_live;
  Log bulk_log, cp_log, wg_log;
  u32 *wgmap, *stamp_of; /* per slot: pending wgmma, last ordinary write */
  u32 wg_fence_stamp, now;
} Warp;

typedef struct TstOp {
  u32 lane, column;
  i32 rows;
  u32 count;
  u32 clock;
  u32* data;
} TstOp;

enum {
  A_TMA_LOAD,
  A_TMA_STORE,
  A_BULK_G2S,
  A_BULK_S2S,
  A_BULK_S2G,
  A_MMA,
  A_TC_CP,
  A_TC_COMMIT,
  A_TC_SHIFT,
  A_CP_ASYNC,
  A_CP_ARRIVE,
  A_WGMMA,
  A_ST_ASYNC,
  A_CLC
};
typedef struct Async {
  i32 kind, pc, lane;
  Warp* warp;
  struct Cta* cta;
  u64 due;
  u32 group; /* bulk or wgmma group */
  u32 clock;
  i32 coord[5];
  u64 a, b, c, d, e;
  u32 mods, mask, phase[16];
  u32 lane_mask[8];
  u32* vc; /* what the issuer knew (races) */
  struct Async* next;
} Async;

typedef struct Cta {
  struct Cluster* cluster;
  i32 rank, id[3];
  u64 linear;
  u8* smem;
  i32 smem_bytes; /* legal end of the window */
  u16* bar_at; /* by address / 8: index + 1 */
  Bar* bars;
  i32 nbars;
  u32 bars_from, bars_to; /* the span of shared memory that barriers lie in */
  Named named[NAMED_BARRIERS];
  Warp* warps;
  i32 nwarps, live_warps, met; /* met: a warp has passed a cluster barrier */
  u32* tmem; /* [128][512] */
  u8 column_owner[TMEM_COLUMNS]; /* 0 free, else allocation number */
  i32 relinquished, alloc_group, last_alloc, held;
  u32 alloc_request, alloc_address; /* of a pair: what this half asks for */
  i32 alloc_done, alloc_pc, alloc_warp;
  Async *pipe_head, *pipe_tail; /* tcgen05, in issue order */
  u32* pipe_known; /* phases that this queue's commits completed (races only) */
  Cell *smem_cells, *tmem_cells;
} Cta;

typedef struct Cluster {
  Launch* launch;
  const Program* program;
  u64 index, rng, step, progress, timeout_rounds, last_progress;
  i32 nctas, nwarps, fatal, dims, depth;
  Cta* ctas;
  Async *pending, *free_ops; /* unordered */
  i32 npending;
  u32 barrier_arrived, barrier_phase;
  u32 *barrier_acc, *barrier_done;
  u8 p_now[8], p_late[8];
  i32 quantum;
  u64 instructions;
  u64* counts;
  u32* scratch_vc;
} Cluster;

/* ---- faults ---- */
enum {
  F_BOUNDS = 1,
  F_MISALIGNED,
  F_ILLEGAL,
  F_UNKNOWN,
  F_DIVERGED,
  F_OVER_ARRIVAL,
  F_TX_RANGE,
  F_LAPPED,
  F_BAR_UNINIT,
  F_BAR_REINIT,
  F_NAMED_COUNT,
  F_NAMED_OVER,
  F_RACE_RAW,
  F_RACE_WAR,
  F_RACE_WAW,
  F_PROXY,
  F_UNINIT_SMEM,
  F_UNINIT_TMEM,
  F_UNINIT_GLOBAL,
  F_TMEM_ALLOC,
  F_TMEM_LANE,
  F_TMEM_LEAK,
  F_DESCRIPTOR,
  F_INIT_FENCE,
  F_WGMMA_REG,
  F_WGMMA_FENCE,
  F_EXIT_PENDING,
  F_DEADLOCK,
  F_LIVELOCK,
  F_GLOBAL_RACE,
  F_TRAP,
  F_CLUSTER_EXITED,
  F_REGISTERS,
  F_PHASE_BYTES,
  F_BAR_DATA,
  F_REGISTERS_DIFFER,
  F_CTA_MASK
};
Fault* fault(Cluster*, i32 kind, const Warp*, i32 pc, i32 lane, u64 address);
Fault* fatal(Cluster*, i32 kind, const Warp*, i32 pc, i32 lane, u64 address);
void report_deadlock(Cluster*);
int mask_fits(const Warp*, u32 mask, i32 pc, i32 lane);

/* ---- shared helpers of the machine ---- */
static inline char* ref(const Warp* w, i32 o);
static inline u32 rnd(Cluster* c) {
  c->rng ^= c->rng << 13;
  c->rng ^= c->rng >> 7;
  c->rng ^= c->rng << 17;
  return (u32)(c->rng >> 24);
}
static inline char* ref_of(char* regs, const char* consts, i32 o) {
  return o >= 0 ? regs + o : (char*)consts + ~o;
}
static inline char* ref(const Warp* w, i32 o) { return ref_of(w->regs, w->cta->cluster->program->consts, o); }
static inline u32* r32(const Warp* w, i32 o) { return (u32*)ref(w, o); }
static inline u64* r64(const Warp* w, i32 o) { return (u64*)ref(w, o); }
static inline u32 lane32(const Warp* w, i32 o, int lane) { return r32(w, o)[lane]; }
static inline u64 lane64(const Warp* w, i32 o, int lane) { return r64(w, o)[lane]; }
static inline int races(const Cluster* c) { return c->launch->races; }

/* bits.c */
u32 prmt(u32 a, u32 b, u32 selector, u32 mode);
u32 dot_product(u32 a, u32 b, u32 c, u32 mods, int four);
u64 bfe(u64 a, u32 pos, u32 len, int bits, int sign);
u64 bfi(u64 a, u64 b, u32 pos, u32 len, int bits);
u32 lop3(u32 a, u32 b, u32 c, u32 table);
u32 reverse_bits(u32);
i32 bfind(u32 v, int sign, int shiftamt);

/* alu.c, float.c */
void alu(Warp*, const Ins*, u32 exec);
void float_modified(const Ins*, u32* d, const u32* a, const u32* b, const u32* c);
void approximate(int op, u32 mods, u32* d, const u32* a);
void perturb_launch(const Launch* L);
int perturbs(u32 which);
float perturb(float y, double bound, u64 operands); /* y less or more `bound` */
void half_arithmetic(const Ins*, u32* d, const u32* a, const u32* b, const u32* c);
void convert(const Ins*, void* d, const void* a);
void convert_pack(const Ins*, u32* d, const u32* a, const u32* b);
void convert_unpack(const Ins*, u32* d, const u32* a);
u32 setp_half(const Ins*, const u32* a, const u32* b);
float half_to_float(u32 h);
float bf16_to_float(u32 h);
float e4m3_to_float(u32 v);
float e5m2_to_float(u32 v);
u32 float_to_half(float f);
u32 float_to_bf16(float f);

/* memory.c */
u8* shared_at(Warp*, u32 address, u32 bytes, int remote, int lane, i32 pc, Cta** owner);
u8* global_at(Cluster*, const Warp*, u64 address, u32 bytes, int lane, i32 pc, int write);
void load(Warp*, const Ins*, u32 exec);
void store(Warp*, const Ins*, u32 exec);
void atomic(Warp*, const Ins*, u32 exec);
void global_touch(Cluster*, const Warp*, u64 address, u32 bytes, int write, i32 pc, int lane);
u64 atomic_combine(u32 op, u32 type, u64 old, u64 v, u64 cas);
void global_lock(void);
void global_unlock(void);
const u8* map_at(Warp*, u64 address, i32 pc, int lane);

/* mbarrier.c */
Bar* bar_at(Warp*, Cta*, u32 offset, i32 pc, int lane);
void bar_arrive(Cluster*, Cta*, Bar*, u32 count, const Warp*, i32 pc, int lane);
void bar_tx(Cluster*, Cta*, Bar*, i64 bytes, const Warp*, i32 pc, int lane);
int mbarrier(Warp*, const Ins*, u32 exec);

/* barriers.c */
int named_barrier(Warp*, const Ins*, u32 exec);
void cluster_arrive(Warp*, const Ins*);
int cluster_wait(Warp*);
void cluster_check(Cluster*);
void warp_exit(Warp*);

/* warpops.c */
void warp_operation(Warp*, const Ins*, u32 exec);
void matrix_operation(Warp*, const Ins*, u32 exec);

/* async.c */
Async* async_new(Warp*, i32 kind, int lane);
void async_issue(Cluster*, Async*, int policy);
void async_complete(Cluster*, Async*);
int async_step(Cluster*, int force);
void async_drain_warp(Warp*, u32 kinds, int lane, u32 below_group);
void async_free(Cluster*, Async*);
enum { P_TMA, P_TENSOR, P_STORE, P_WGMMA, P_TST, P_CPASYNC };

/* tma.c, bulk.c */
void tma_issue(Warp*, const Ins*, u32 exec);
void tma_complete(Cluster*, Async*);
void bulk_operation(Warp*, const Ins*, u32 exec);
void bulk_complete(Cluster*, Async*);
void copy_operation(Warp*, const Ins*, u32 exec);
void copy_complete(Cluster*, Async*);
void clc_operation(Warp*, const Ins*, u32 exec);
void clc_complete(Cluster*, Async*);

/* descriptor.c */
typedef struct {
  Cta* cta;
  u64 descriptor;
  int first_row, rows, k_bytes, mn_major, elem_bytes, format, negate;
  int hopper;
} Operand;
enum { FMT_F16, FMT_BF16, FMT_TF32, FMT_E4M3, FMT_E5M2, FMT_U8, FMT_S8 };
int operand_units(Cluster*, const Warp*, i32 pc, int lane, const Operand*, u32* offsets);
int operand_gather(Cluster*, const Warp*, i32 pc, int lane, const Operand*, float* out, int transposed,
                   int pitch);
void operand_race(Cluster*, const Warp*, i32 pc, int lane, const Operand*, int is_a, const Actor*);
void multiply(float* d, const float* a, const float* bt, int m, int n, int k, int pitch);

/* tcgen05.c, tmem.c */
int tmem_manage(Warp*, const Ins*, u32 exec);
void tmem_access(Warp*, const Ins*, u32 exec);
void tmem_flush(Warp*);
void tcgen05_issue(Warp*, const Ins*, u32 exec);
void tcgen05_complete(Cluster*, Async*);
int tmem_check(Cluster*, Cta*, const Warp*, i32 pc, int lane, u32 column, u32 count);

/* wgmma.c */
void wgmma_operation(Warp*, const Ins*, u32 exec);
void wgmma_complete(Cluster*, Async*);

/* race.c: all no-ops unless the launch asks for races */
void race_begin(Cluster*);
void race_end(Cluster*);
void vc_join(u32* into, const u32* from, int dims);
void warp_release(
    Warp*); /* the warp's clock moves on: later accesses are not covered by what was published */
void publish(Warp*, u32* into, int relaxed);
void acquire(Warp*, const u32* from);
u32* vc_snapshot(Warp*);
u32* calloc_vc(const Cluster*);
void publish_async(Cluster*, const Async*, u32* into);
Actor generic_actor(Warp*, i32 pc, int lane);
void race_smem(Cluster*, Cta*, u32 offset, u32 bytes, int write, const Actor*);
void race_tmem(Cluster*, Cta*, u32 lane, u32 lanes, u32 column, u32 columns, int write, const Actor*);
void stream_done(Warp*, int component, u32 clock);
void log_add(Log*, u32 lane, u32 group, u32 clock);
u32 log_wait(Log*, u32 lanes, const u32* groups, u32 pending, u32 newest);
void tensor_actor(Warp*, int component, i32 pc, int lane, Actor*);
Fault* fault_pair(Cluster*, i32 kind, const Warp*, i32 pc, i32 lane, u64 address, i32 other_pc);
void race_bar_use(Warp*, Cta*, Bar*, int async, i32 pc, int lane);
int comp_of(const Warp*, int component);

/* registers.c */
void race_registers(Warp*, const Ins*, i32 pc);
void race_ld_issued(Warp*, const Ins*, u32 seq, u32 lane, u32 rows, u32 column, u32 span);
void race_ld_wait(Warp*);
void race_wgmma_registers(Warp*, const Ins*, i32 pc, u32 seq);

/* cluster.c, scheduler.c */
void begin_cluster(Cluster*, Launch*, u64 index);
void end_cluster(Cluster*);
int run_launch(Launch*);
void wake_bar(Cluster*, Bar*);
static inline void progressed(Cluster* c) { c->progress++; }
#endif
