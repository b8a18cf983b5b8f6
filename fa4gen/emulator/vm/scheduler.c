/* Time: which warp moves next, for how long, and when asynchronous operations take effect, all from the seed.
 */
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include "vm.h"

#define ALU_LAST OP_CVT_BF16X2_F32
#define SPINNING 200000 /* warp instructions without progress */
#define MAX_DEPTH 64

/* ---- lanes of one warp: those at the smallest program counter go first ---- */
static int regroup(Warp* w) {
  u32 ready = w->live & ~w->parked;
  if (!ready) return 0;
  int target = INT_MAX;
  EACH (ready)
    if (w->lane_pc[l] < target) target = w->lane_pc[l];
  w->active = 0;
  w->other_pc = INT_MAX;
  EACH (w->live) {
    if (w->lane_pc[l] == target) w->active |= 1u << l;
    else if (w->lane_pc[l] > target && w->lane_pc[l] < w->other_pc) w->other_pc = w->lane_pc[l];
  }
  w->parked &= ~w->active;
  w->pc = target;
  return 1;
}

static void spread(Warp* w, i32 pc) {
  EACH (w->active) w->lane_pc[l] = pc;
}

static void advance(Warp* w, i32 pc) {
  w->pc = pc;
  if (w->active != w->live && pc >= w->other_pc) {
    spread(w, pc);
    regroup(w);
  }
}

/* the active lanes cannot go on: others of the warp may. Returns whether any can. */
static int park(Warp* w, int status) {
  if (w->active == w->live) {
    w->status = status;
    w->stamp = w->cta->cluster->progress;
    return 0;
  }
  spread(w, w->pc);
  w->parked |= w->active;
  if (regroup(w)) return 1;
  w->status = POLLING;
  w->stamp = w->cta->cluster->progress;
  return 0;
}

static void branch(Warp* w, const Ins* i, u32 taken) {
  if (taken == w->active) {
    if (w->active == w->live) {
      w->pc = i->target;
      return;
    }
    spread(w, i->target);
    regroup(w);
    return;
  }
  if (!taken) {
    advance(w, w->pc + 1);
    return;
  }
  spread(w, w->pc + 1);
  EACH (taken) w->lane_pc[l] = i->target;
  regroup(w);
}

static int leave(Warp* w, u32 lanes) { /* 0: the whole warp is gone */
  spread(w, w->pc + 1);
  w->live &= ~lanes;
  w->parked &= w->live;
  if (!w->live) {
    warp_exit(w);
    return 0;
  }
  if (!regroup(w)) {
    w->status = POLLING;
    w->stamp = w->cta->cluster->progress;
    return 0;
  }
  return 1;
}

static int needs_all(const Warp* w, const Ins* i) { /* lanes that must be here and are not */
  if (!(i->flags & 0x8000)) return 0;
  u32 mask = i->o[7] == (i32)0x80000000 ? FULL : lane32(w, i->o[7], __builtin_ctz(w->active));
  return (mask & w->live & ~w->active) != 0;
}

static void fence(Warp* w, const Ins* i) {
  Cluster* c = w->cta->cluster;
  if (!races(c)) return;
  u32* v = w->vc + comp_of(w, C_GENERIC);
  if (i->op == OP_FENCE_PROXY_ASYNC) v[C_FENCED] = w->clock[C_GENERIC];
  else if (i->op == OP_FENCE_MBAR_INIT) v[C_INIT] = w->clock[C_GENERIC];
  else memcpy(w->fence, w->vc, 4 * (size_t)c->dims);
  warp_release(w);
}

/* one instruction that is not arithmetic: 1 go on, 0 blocked at it, 2 blocked after it, 3 control moved
 * already */
static int control(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  switch (i->op) {
    case OP_BRA: branch(w, i, exec); return 3;
    case OP_RET: return leave(w, exec) ? 3 : 4;
    case OP_TRAP: fatal(c, F_TRAP, w, w->pc, -1, 0); return 1;
    case OP_UNKNOWN: fatal(c, F_UNKNOWN, w, w->pc, -1, 0); return 1;
    case OP_LD: load(w, i, exec); return 1;
    case OP_ST: store(w, i, exec); return 1;
    case OP_ATOM: atomic(w, i, exec); return 1;
    case OP_LDMATRIX:
    case OP_STMATRIX: matrix_operation(w, i, exec); return 1;
    case OP_MBAR_INIT:
    case OP_MBAR_INVAL:
    case OP_MBAR_ARRIVE:
    case OP_MBAR_WAIT:
    case OP_MBAR_TX:
    case OP_MBAR_PENDING: return mbarrier(w, i, exec) ? 1 : 0;
    case OP_BAR: return named_barrier(w, i, exec) ? 1 : 2;
    case OP_CLUSTER_ARRIVE: cluster_arrive(w, i); return 1;
    case OP_CLUSTER_WAIT: return cluster_wait(w);
    case OP_FENCE:
    case OP_FENCE_PROXY_ASYNC:
    case OP_FENCE_MBAR_INIT: fence(w, i); return 1;
    case OP_SETMAXNREG:
      if (i->imm % 8 || i->imm < 24 || i->imm > 256) {
        Fault* f = fault(c, F_REGISTERS, w, w->pc, -1, 0);
        if (f) f->a = i->imm;
      }
      w->maxnreg = (i32)i->imm;
      w->maxnreg_pc = w->pc;
      return 1;
    case OP_WARP_SYNC:
    case OP_HINT:
    case OP_GRID_WAIT:
    case OP_NANOSLEEP:
    case OP_TC_FENCE: return 1;
    case OP_TMA_LOAD:
    case OP_TMA_STORE: tma_issue(w, i, exec); return 1;
    case OP_BULK_G2S:
    case OP_BULK_S2S:
    case OP_BULK_S2G:
    case OP_BULK_COMMIT:
    case OP_BULK_WAIT:
    case OP_ST_ASYNC: bulk_operation(w, i, exec); return 1;
    case OP_CP_ASYNC:
    case OP_CP_ASYNC_COMMIT:
    case OP_CP_ASYNC_WAIT:
    case OP_CP_ASYNC_ARRIVE: copy_operation(w, i, exec); return 1;
    case OP_TC_ALLOC:
    case OP_TC_DEALLOC:
    case OP_TC_RELINQUISH: return tmem_manage(w, i, exec);
    case OP_TC_LD:
    case OP_TC_ST:
    case OP_TC_WAIT: tmem_access(w, i, exec); return 1;
    case OP_TC_MMA:
    case OP_TC_CP:
    case OP_TC_SHIFT:
    case OP_TC_COMMIT: tcgen05_issue(w, i, exec); return 1;
    case OP_WG_FENCE:
    case OP_WG_MMA:
    case OP_WG_COMMIT:
    case OP_WG_WAIT: wgmma_operation(w, i, exec); return 1;
    case OP_CLC_CANCEL:
    case OP_CLC_QUERY: clc_operation(w, i, exec); return 1;
    default: warp_operation(w, i, exec); return 1;
  }
}

static int blocked_status(const Ins* i) {
  return i->op == OP_MBAR_WAIT ? ON_MBAR : i->op == OP_CLUSTER_WAIT ? ON_CLUSTER : POLLING;
}

static void run_warp(Warp* w, int budget) {
  Cluster* c = w->cta->cluster;
  const Ins* ins = c->program->ins;
  int watch = races(c);
  if (w->parked) {
    spread(w, w->pc);
    w->parked = 0;
    regroup(w);
  }
  int spent = 0;
  while (spent < budget && !c->fatal) {
    const Ins* i = &ins[w->pc];
    u32 exec = w->active;
    if (i->guard >= 0) {
      u32 p = *(u32*)(w->regs + (i->guard >> 1));
      exec &= i->guard & 1 ? ~p : p;
    }
    spent++;
    c->counts[w->pc]++;
    w->now++;
    if (i->op <= ALU_LAST) {
      if (exec) {
        if (watch && (w->ld_live | c->program->uses_wgmma)) race_registers(w, i, w->pc);
        alu(w, i, exec);
      }
      advance(w, w->pc + 1);
      continue;
    }
    if (!exec && i->op != OP_BRA) {
      advance(w, w->pc + 1);
      continue;
    }
    if (needs_all(w, i)) {
      if (park(w, POLLING)) continue;
      break;
    }
    if (watch && (w->ld_live | c->program->uses_wgmma) && i->op != OP_WG_MMA) race_registers(w, i, w->pc);
    int how = control(w, i, exec);
    if (how == 1) advance(w, w->pc + 1);
    else if (how == 0) {
      c->counts[w->pc]--;
      if (!park(w, blocked_status(i))) break;
    } else if (how == 2) {
      advance(w, w->pc + 1);
      w->status = ON_NAMED;
      break;
    } else if (how == 4) break;
  }
  w->executed += (u64)spent;
  c->instructions += (u64)spent;
}

void wake_bar(Cluster* c, Bar* b) {
  for (int k = 0; k < c->nctas; k++)
    for (int v = 0; v < c->ctas[k].nwarps; v++) {
      Warp* w = &c->ctas[k].warps[v];
      if (w->status == ON_MBAR && w->bar == b) w->status = READY;
    }
}

static Warp* pick(Cluster* c, int poll) {
  Warp* ready[1024];
  u32 n = 0;
  for (int k = 0; k < c->nctas; k++)
    for (int v = 0; v < c->ctas[k].nwarps; v++) {
      Warp* w = &c->ctas[k].warps[v];
      if (w->status == READY || (poll && w->status == POLLING && w->stamp != c->progress)) ready[n++] = w;
    }
  return n ? ready[n == 1 ? 0 : rnd(c) % n] : NULL;
}

/* nobody can move: let every try_wait run out of time once; if that leads nowhere often enough it is a
 * deadlock */
static int time_out(Cluster* c) {
  if (c->last_progress != c->progress) {
    c->last_progress = c->progress;
    c->timeout_rounds = 0;
  }
  if (c->timeout_rounds++ >= 64) return 0;
  int any = 0;
  for (int k = 0; k < c->nctas; k++)
    for (int v = 0; v < c->ctas[k].nwarps; v++) {
      Warp* w = &c->ctas[k].warps[v];
      if (w->status == ON_MBAR || (w->status == POLLING && w->bar)) {
        w->status = READY;
        w->timed_out = 1;
        any = 1;
      }
    }
  return any;
}

static void policy(Cluster* c) {
  static const u8 early[5] = {255, 192, 128, 48, 0}, late[4] = {0, 64, 160, 255};
  for (int k = 0; k < 8; k++) {
    c->p_now[k] = early[rnd(c) % 5];
    c->p_late[k] = late[rnd(c) % 4];
  }
  static const int quanta[5] = {16, 64, 200, 600, 2000};
  c->quantum = quanta[rnd(c) % 5];
}

static void one_cluster(Launch* L, u64 index, u64* counts, int depth);
static u64 clusters(const Launch* L) {
  return (u64)(L->grid[0] / L->cluster[0]) * (L->grid[1] / L->cluster[1]) * (L->grid[2] / L->cluster[2]);
}

/* counts this worker among those that only spin, or no longer */
static void spin(Cluster* c, int* spins, int now) {
  if (*spins != now) __atomic_fetch_add(&c->launch->spinning, now - *spins, __ATOMIC_RELAXED);
  *spins = now;
}

/* whether no worker does anything but spin: else it may be another's turn (a lock in global memory) */
static int all_spin(const Launch* L) {
  return __atomic_load_n(&L->spinning, __ATOMIC_RELAXED) >= __atomic_load_n(&L->active, __ATOMIC_RELAXED);
}

/* a cluster that only spins, as do all that have started, may wait for one that has not: that one runs now */
static int admit_another(Cluster* c, int* spins) {
  if (c->depth >= MAX_DEPTH) return 0;
  u64 k = __atomic_fetch_add(&c->launch->next_cluster, 1, __ATOMIC_RELAXED);
  if (k >= clusters(c->launch)) return 0;
  spin(c, spins, 0);
  one_cluster(c->launch, k, c->counts, c->depth + 1);
  return 1;
}

static void run_cluster(Cluster* c) {
  u64 last = c->progress, quiet = 0;
  int spins = 0;
  while (!c->fatal && !c->launch->stop) {
    c->step++;
    async_step(c, 0);
    Warp* w = pick(c, 0);
    if (!w) w = pick(c, 1);
    if (w) {
      w->status = READY;
      u64 before = c->instructions;
      run_warp(w, 1 + (int)(rnd(c) % (u32)c->quantum));
      quiet = c->progress == last ? quiet + c->instructions - before : 0;
      last = c->progress;
      spin(c, &spins, quiet > SPINNING);
      if (!spins) continue;
      if (!all_spin(c->launch)) { /* this time does not count */
        quiet -= c->instructions - before;
        if (quiet < SPINNING) quiet = SPINNING;
        sched_yield();
        continue;
      }
      if (admit_another(c, &spins)) quiet = 0;
      if (quiet > c->launch->spin_limit) {
        fatal(c, F_LIVELOCK, w, w->pc, -1, quiet);
        c->launch->deadlocked = 1;
        return;
      }
      continue;
    }
    int alive = 0;
    for (int k = 0; k < c->nctas; k++) alive += c->ctas[k].live_warps;
    if (async_step(c, 1)) continue;
    if (!alive) break;
    if (!time_out(c)) {
      report_deadlock(c);
      break;
    }
  }
  spin(c, &spins, 0);
}

static void one_cluster(Launch* L, u64 index, u64* counts, int depth) {
  Cluster c;
  begin_cluster(&c, L, index);
  c.depth = depth;
  c.counts = counts;
  policy(&c);
  run_cluster(&c);
  __atomic_fetch_add(&L->instructions, c.instructions, __ATOMIC_RELAXED);
  __atomic_fetch_add(&L->clusters_done, 1, __ATOMIC_RELAXED);
  if (c.fatal) L->stop = 1;
  end_cluster(&c);
}

/* a worker: takes clusters until none are left. Several may run at once, in threads of their own. */
__attribute__((visibility("default"))) int run_launch(Launch* L) {
  u64* counts = calloc((size_t)L->program.count + 1, 8);
  perturb_launch(L);
  __atomic_fetch_add(&L->active, 1, __ATOMIC_RELAXED);
  while (!L->stop) {
    u64 k = __atomic_fetch_add(&L->next_cluster, 1, __ATOMIC_RELAXED);
    if (k >= clusters(L)) break;
    one_cluster(L, k, counts, 0);
  }
  __atomic_fetch_sub(&L->active, 1, __ATOMIC_RELAXED);
  for (int k = 0; k < L->program.count; k++)
    __atomic_fetch_add(&L->op_counts[k], counts[k], __ATOMIC_RELAXED);
  free(counts);
  return 0;
}
