/* Time: which warp moves next, for how long, and when asynchronous operations take effect, all from the seed. */
#include <limits.h>
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
  EACH(ready) if (w->lane_pc[l] < target) target = w->lane_pc[l];
  w->active = 0;
  w->other_pc = INT_MAX;
  EACH(w->live) {
    if (w->lane_pc[l] == target) w->active |= 1u << l;
    else if (w->lane_pc[l] > target && w->lane_pc[l] < w->other_pc) w->other_pc = w->lane_pc[l];
  }
  w->parked &= ~w->active;
  w->pc = target;
  return 1;
}

static void spread(Warp* w, i32 pc) { EACH(w->active) w->lane_pc[l] = pc; }

static void advance(Warp* w, i32 pc) {
  w->pc = pc;
  if (w->active != w->live && pc >= w->other_pc) { spread(w, pc); regroup(w); }
}

/* the active lanes cannot go on: others of the warp may. Returns whether any can. */
static int park(Warp* w, int status) {
  if (w->active == w->live) { w->status = status; w->stamp = w->cta->cluster->progress; return 0; }
  spread(w, w->pc);
  w->parked |= w->active;
  if (regroup(w)) return 1;
  w->status = POLLING;
  w->stamp = w->cta->cluster->progress;
  return 0;
}

static void branch(Warp* w, const Ins* i, u32 taken) {
  if (taken == w->active) {
    if (w->active == w->live) { w->pc = i->target; return; }
    spread(w, i->target);
    regroup(w);
    return;
  }
  if (!taken) { advance(w, w->pc + 1); return; }
  spread(w, w->pc + 1);
  EACH(taken) w->lane_pc[l] = i->target;
  regroup(w);
}

static int leave(Warp* w, u32 lanes) { /* 0: the whole warp is gone */
  spread(w, w->pc + 1);
  w->live &= ~lanes;
  w->parked &= w->live;
  if (!w->live) { warp_exit(w); return 0; }
  if (!regroup(w)) { w->status = POLLING; w->stamp = w->cta->cluster->progress; return 0; }
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

/* one instruction that is not arithmetic: 1 go on, 0 blocked at it, 2 blocked after it, 3 control moved already */
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
    case OP_LDMATRIX: case OP_STMATRIX: matrix_operation(w, i, exec); return 1;
    case OP_MBAR_INIT: case OP_MBAR_INVAL: case OP_MBAR_ARRIVE: case OP_MBAR_WAIT: case OP_MBAR_TX: case OP_MBAR_PENDING: return mbarrier(w, i, exec) ? 1 : 0;
    case OP_BAR: return named_barrier(w, i, exec) ? 1 : 2;
    case OP_CLUSTER_ARRIVE: cluster_arrive(w, i); return 1;
    case OP_CLUSTER_WAIT: return cluster_wait(w);
    case OP_FENCE: case OP_FENCE_PROXY_ASYNC: case OP_FENCE_MBAR_INIT: fence(w, i); return 1;
    case OP_SETMAXNREG:
      if (i->imm % 8 || i->imm < 24 || i->imm > 256) { Fault* f = fault(c, F_REGISTERS, w, w->pc, -1, 0); if (f) f->a = i->imm; }
      w->maxnreg = (i32)i->imm;
      return 1;
    case OP_WARP_SYNC: case OP_HINT: case OP_GRID_WAIT: case OP_NANOSLEEP: case OP_TC_FENCE: return 1;
    case OP_TMA_LOAD: case OP_TMA_STORE: tma_issue(w, i, exec); return 1;
    case OP_BULK_G2S: case OP_BULK_S2S: case OP_BULK_S2G: case OP_BULK_COMMIT: case OP_BULK_WAIT: case OP_ST_ASYNC: bulk_operation(w, i, exec); return 1;
    case OP_CP_ASYNC: case OP_CP_ASYNC_COMMIT: case OP_CP_ASYNC_WAIT: case OP_CP_ASYNC_ARRIVE: copy_operation(w, i, exec); return 1;
    case OP_TC_ALLOC: case OP_TC_DEALLOC: case OP_TC_RELINQUISH: return tmem_manage(w, i, exec);
    case OP_TC_LD: case OP_TC_ST: case OP_TC_WAIT: tmem_access(w, i, exec); return 1;
    case OP_TC_MMA: case OP_TC_CP: case OP_TC_SHIFT: case OP_TC_COMMIT: tcgen05_issue(w, i, exec); return 1;
    case OP_WG_FENCE: case OP_WG_MMA: case OP_WG_COMMIT: case OP_WG_WAIT: wgmma_operation(w, i, exec); return 1;
    case OP_CLC_CANCEL: case OP_CLC_QUERY: clc_operation(w, i, exec); return 1;
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
  if (w->parked) { spread(w, w->pc); w->parked = 0; regroup(w); }
  int spent = 0;
  while (spent < budget && !c->fatal) {
    const Ins* i = &ins[w->pc];
    u32 exec = w->active;
    if (i->guard >= 0) { u32 p = *(u32*)(w->regs + (i->guard >> 1)); exec &= i->guard & 1 ? ~p : p; }
    spent++;
    c->counts[w->pc]++;
    w->now++;
    if (i->op <= ALU_LAST) {
      if (exec) { if (watch && (w->ld_live | c->program->uses_wgmma)) race_registers(w, i, w->pc); alu(w, i, exec); }
      advance(w, w->pc + 1);
      continue;
    }
    if (!exec && i->op != OP_BRA) { advance(w, w->pc + 1); continue; }
    if (needs_all(w, i)) { if (park(w, POLLING)) continue; break; }
    if (watch && (w->ld_live | c->program->uses_wgmma) && i->op != OP_WG_MMA) race_registers(w, i, w->pc);
    int how = control(w, i, exec);
    if (how == 1) advance(w, w->pc + 1);
    else if (how == 0) { c->counts[w->pc]--; if (!park(w, blocked_status(i))) break; }
    else if (how == 2) { advance(w, w->pc + 1); w->status = ON_NAMED; break; }
    else if (how == 4) break;
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

/* nobody can move: let every try_wait run out of time once; if that leads nowhere often enough it is a deadlock */
static int time_out(Cluster* c) {
  if (c->last_progress != c->progress) { c->last_progress = c->progress; c->timeout_rounds = 0; }
  if (c->timeout_rounds++ >= 64) return 0;
  int any = 0;
  for (int k = 0; k < c->nctas; k++)
    for (int v = 0; v < c->ctas[k].nwarps; v++) {
      Warp* w = &c->ctas[k].warps[v];
      if (w->status == ON_MBAR || (w->status == POLLING && w->bar)) { w->status = READY; w->timed_out = 1; any = 1; }
    }
  return any;
}

static void policy(Cluster* c) {
  static const u8 early[5] = {255, 192, 128, 48, 0}, late[4] = {0, 64, 160, 255};
  for (int k = 0; k < 8; k++) { c->p_now[k] = early[rnd(c) % 5]; c->p_late[k] = late[rnd(c) % 4]; }
  static const int quanta[5] = {16, 64, 200, 600, 2000};
  c->quantum = quanta[rnd(c) % 5];
}

static void one_cluster(Launch* L, u64 index, u64* counts, int depth);
static u64 clusters(const Launch* L) { return (u64)(L->grid[0] / L->cluster[0]) * (L->grid[1] / L->cluster[1]) * (L->grid[2] / L->cluster[2]); }

/* a cluster that only spins may wait for one that has not started (a lock in global memory): that one runs now */
static int admit_another(Cluster* c) {
  if (c->depth >= MAX_DEPTH) return 0;
  u64 k = __atomic_fetch_add(&c->launch->next_cluster, 1, __ATOMIC_RELAXED);
  if (k >= clusters(c->launch)) return 0;
  one_cluster(c->launch, k, c->counts, c->depth + 1);
  return 1;
}

static void run_cluster(Cluster* c) {
  u64 last = c->progress, quiet = 0;
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
      if (quiet > SPINNING && admit_another(c)) quiet = 0;
      if (quiet > c->launch->spin_limit) { fatal(c, F_LIVELOCK, w, w->pc, -1, quiet); c->launch->deadlocked = 1; return; }
      continue;
    }
    int alive = 0;
    for (int k = 0; k < c->nctas; k++) alive += c->ctas[k].live_warps;
    if (async_step(c, 1)) continue;
    if (!alive) return;
    if (!time_out(c)) { report_deadlock(c); return; }
  }
}

/* ---- building and clearing a cluster ---- */
static void special(Warp* w, int which, u32* d, int lane) {
  Cta* t = w->cta;
  const Launch* L = t->cluster->launch;
  u32 linear = (u32)w->index * 32 + (u32)lane, v = 0;
  u32 cid[3], crank[3];
  for (int k = 0; k < 3; k++) { cid[k] = (u32)t->id[k] / L->cluster[k]; crank[k] = (u32)t->id[k] % L->cluster[k]; }
  switch (which) {
    case 0: v = linear % L->block[0]; break;
    case 1: v = linear / L->block[0] % L->block[1]; break;
    case 2: v = linear / L->block[0] / L->block[1]; break;
    case 3: case 4: case 5: v = L->block[which - 3]; break;
    case 6: case 7: case 8: v = (u32)t->id[which - 6]; break;
    case 9: case 10: case 11: v = L->grid[which - 9]; break;
    case 12: v = (u32)lane; break;
    case 13: v = (u32)w->index; break;
    case 14: v = (u32)t->nwarps; break;
    case 15: case 16: case 17: v = cid[which - 15]; break;
    case 18: case 19: case 20: v = L->grid[which - 18] / L->cluster[which - 18]; break;
    case 21: case 22: case 23: v = crank[which - 21]; break;
    case 24: case 25: case 26: v = L->cluster[which - 24]; break;
    case 27: v = (u32)t->rank; break;
    case 28: v = L->cluster[0] * L->cluster[1] * L->cluster[2]; break;
    case 29: v = 1u << lane; break;
    case 30: v = (1u << lane) - 1; break;
    case 31: v = (2u << lane) - 1; break;
    case 32: v = ~((2u << lane) - 1); break;
    case 33: v = ~((1u << lane) - 1); break;
    case 34: v = 0; break;                                  /* smid */
    case 35: v = (u32)t->smem_bytes - SHARED_BASE; break;   /* dynamic_smem_size and total_smem_size */
    case 36: v = 1; break;
    case 37: v = (u32)t->rank << 24 | SHARED_BASE; break;   /* start of the shared window, for symbols */
  }
  d[lane] = v;
}

static void start_warp(Warp* w, Cta* t, int index) {
  const Program* p = t->cluster->program;
  memset(w, 0, sizeof *w);
  w->cta = t;
  w->index = index;
  w->id = t->rank * t->nwarps + index;
  w->regs = aligned_alloc(64, ((size_t)p->reg_bytes + 63) / 64 * 64);
  for (size_t k = 0; k < (size_t)p->reg_bytes / 4; k++) ((u32*)w->regs)[k] = 0x7fffdeadu;
  u32 threads = t->cluster->launch->block[0] * t->cluster->launch->block[1] * t->cluster->launch->block[2], left = threads - 32 * (u32)index;
  w->live = w->active = left >= 32 ? FULL : (1u << left) - 1;
  w->other_pc = INT_MAX;
  for (int k = 0; k < p->nspecials; k++) LANES special(w, p->specials[2 * k], (u32*)(w->regs + p->specials[2 * k + 1]), l);
}

static void start_cta(Cluster* c, Cta* t, int rank, const u32* origin) {
  Launch* L = c->launch;
  memset(t, 0, sizeof *t);
  t->cluster = c;
  t->rank = rank;
  t->id[0] = (i32)(origin[0] + (u32)rank % L->cluster[0]);
  t->id[1] = (i32)(origin[1] + (u32)rank / L->cluster[0] % L->cluster[1]);
  t->id[2] = (i32)(origin[2] + (u32)rank / L->cluster[0] / L->cluster[1]);
  t->linear = (u64)t->id[0] + (u64)L->grid[0] * ((u64)t->id[1] + (u64)L->grid[1] * (u64)t->id[2]);
  t->smem_bytes = (i32)SHARED_BASE + c->program->smem_bytes;
  t->smem = malloc((size_t)t->smem_bytes + 64);
  for (size_t k = 0; k < (size_t)t->smem_bytes; k += 4) memset(t->smem + k, 0xff, 4); /* unwritten memory: NaN in every type */
  t->bar_at = calloc((size_t)t->smem_bytes / 8 + 1, 2);
  t->bars = calloc(MAX_BARS, sizeof(Bar));
  t->tmem = malloc(4 * 128 * TMEM_COLUMNS);
  for (int k = 0; k < 128 * TMEM_COLUMNS; k++) t->tmem[k] = FULL;
  t->nwarps = t->live_warps = (i32)((L->block[0] * L->block[1] * L->block[2] + 31) / 32);
  t->warps = calloc((size_t)t->nwarps, sizeof(Warp));
  for (int k = 0; k < t->nwarps; k++) start_warp(&t->warps[k], t, k);
}

static void end_cluster(Cluster* c) {
  race_end(c);
  for (int k = 0; k < c->nctas; k++) {
    Cta* t = &c->ctas[k];
    while (t->pipe_head) { Async* a = t->pipe_head; t->pipe_head = a->next; async_free(c, a); }
    for (int v = 0; v < t->nwarps; v++) {
      free(t->warps[v].regs);
      for (int s = 0; s < t->warps[v].ntst; s++) free(t->warps[v].tst[s].data);
      free(t->warps[v].tst);
    }
    free(t->warps); free(t->smem); free(t->bar_at); free(t->bars); free(t->tmem);
  }
  while (c->pending) { Async* a = c->pending; c->pending = a->next; async_free(c, a); }
  while (c->free_ops) { Async* a = c->free_ops; c->free_ops = a->next; free(a->vc); free(a); }
  free(c->ctas);
}

static void one_cluster(Launch* L, u64 index, u64* counts, int depth) {
  Cluster c;
  memset(&c, 0, sizeof c);
  c.launch = L;
  c.program = &L->program;
  c.index = index;
  c.depth = depth;
  c.counts = counts;
  c.rng = (L->seed + 1) * 0x9e3779b97f4a7c15ull ^ (index + 1) * 0xbf58476d1ce4e5b9ull;
  for (int k = 0; k < 8; k++) rnd(&c);
  c.nctas = (i32)(L->cluster[0] * L->cluster[1] * L->cluster[2]);
  u32 gx = L->grid[0] / L->cluster[0], gy = L->grid[1] / L->cluster[1];
  u32 origin[3] = {(u32)(index % gx) * L->cluster[0], (u32)(index / gx % gy) * L->cluster[1], (u32)(index / gx / gy) * L->cluster[2]};
  policy(&c);
  c.ctas = calloc((size_t)c.nctas, sizeof(Cta));
  for (int k = 0; k < c.nctas; k++) start_cta(&c, &c.ctas[k], k, origin);
  c.nwarps = c.nctas * c.ctas[0].nwarps;
  c.dims = c.nwarps * C_PER_WARP + c.nctas * MAX_BARS;
  race_begin(&c);
  run_cluster(&c);
  __atomic_fetch_add(&L->instructions, c.instructions, __ATOMIC_RELAXED);
  __atomic_fetch_add(&L->clusters_done, 1, __ATOMIC_RELAXED);
  if (c.fatal) L->stop = 1;
  end_cluster(&c);
}

/* a worker: takes clusters until none are left. Several may run at once, in threads of their own. */
__attribute__((visibility("default"))) int run_launch(Launch* L) {
  u64* counts = calloc((size_t)L->program.count + 1, 8);
  while (!L->stop) {
    u64 k = __atomic_fetch_add(&L->next_cluster, 1, __ATOMIC_RELAXED);
    if (k >= clusters(L)) break;
    one_cluster(L, k, counts, 0);
  }
  for (int k = 0; k < L->program.count; k++) __atomic_fetch_add(&L->op_counts[k], counts[k], __ATOMIC_RELAXED);
  free(counts);
  return 0;
}
