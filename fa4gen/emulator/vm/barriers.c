/* Named barriers, the cluster barrier, and what happens when a warp ends. */
#include "vm.h"

#define NONE ((i32)0x80000000)

static void release(Cta* t, int id) {
  Cluster* c = t->cluster;
  Named* n = &t->named[id];
  for (int k = 0; k < t->nwarps; k++)
    if (n->waiting >> k & 1) {
      Warp* w = &t->warps[k];
      w->status = READY;
      if (races(c)) acquire(w, n->acc);
    }
  n->arrived = n->expected = 0;
  n->waiting = n->members = 0;
  if (races(c)) memset(n->acc, 0, 4 * (size_t)c->dims);
}

/* returns 0 if the warp now waits (its pc is moved on by the caller) */
int named_barrier(Warp* w, const Ins* i, u32 exec) {
  Cta* t = w->cta;
  Cluster* c = t->cluster;
  i32 pc = (i32)(i - c->program->ins);
  int lane = __builtin_ctz(exec);
  u32 id = lane32(w, i->o[1], lane), count = i->o[2] == NONE ? (u32)t->nwarps * 32 : lane32(w, i->o[2], lane);
  int sync = i->mods & 1;
  if (id >= NAMED_BARRIERS || count == 0 || count % 32 || count > (u32)t->nwarps * 32) {
    Fault* f = fatal(c, F_NAMED_COUNT, w, pc, lane, id);
    if (f) {
      f->a = count;
      f->b = -1;
    }
    return 1;
  }
  Named* n = &t->named[id];
  if (n->arrived && n->expected != count) {
    Fault* f = fatal(c, F_NAMED_COUNT, w, pc, lane, id);
    if (f) {
      f->a = count;
      f->b = n->expected;
    }
    return 1;
  }
  n->expected = count;
  n->arrived += 32;
  n->members |= 1ull << w->index;
  if (n->arrived > count) {
    Fault* f = fatal(c, F_NAMED_OVER, w, pc, lane, id);
    if (f) {
      f->a = n->arrived;
      f->b = count;
    }
    return 1;
  }
  if (races(c)) {
    publish(w, n->acc, 0);
    warp_release(w);
  }
  progressed(c);
  if (n->arrived == count) {
    if (sync && races(c)) acquire(w, n->acc);
    release(t, (int)id);
    return 1;
  }
  if (sync) {
    n->waiting |= 1ull << w->index;
    w->named = (i32)id;
    return 0;
  }
  return 1;
}

void cluster_check(Cluster* c) {
  int any = 0;
  for (int k = 0; k < c->nctas; k++)
    for (int v = 0; v < c->ctas[k].nwarps; v++) {
      Warp* w = &c->ctas[k].warps[v];
      if (w->status == EXITED) continue;
      if (!w->cluster_arrived) return;
      any = 1;
    }
  if (!any) return;
  c->barrier_phase++;
  if (races(c)) {
    memcpy(c->barrier_done, c->barrier_acc, 4 * (size_t)c->dims);
    memset(c->barrier_acc, 0, 4 * (size_t)c->dims);
  }
  for (int k = 0; k < c->nctas; k++)
    for (int v = 0; v < c->ctas[k].nwarps; v++) {
      Warp* w = &c->ctas[k].warps[v];
      w->cluster_arrived = 0;
      if (w->status == ON_CLUSTER) w->status = READY;
    }
  progressed(c);
}

void cluster_arrive(Warp* w, const Ins* i) {
  Cluster* c = w->cta->cluster;
  if (w->cluster_arrived) {
    fatal(c, F_ILLEGAL, w, (i32)(i - c->program->ins), 0, 0);
    return;
  }
  w->cluster_arrived = 1;
  w->cluster_phase = c->barrier_phase;
  if (races(c)) {
    publish(w, c->barrier_acc, i->mods & 4);
    warp_release(w);
  }
  progressed(c);
  cluster_check(c);
}

int cluster_wait(Warp* w) {
  Cluster* c = w->cta->cluster;
  if (c->barrier_phase == w->cluster_phase) return 0;
  if (races(c)) acquire(w, c->barrier_done);
  w->cta->met = 1;
  return 1;
}

/* What the warps asked for with setmaxnreg must be the same within a warpgroup, and fit the registers that
 * the CTA got: those of an even share of 64 Ki, as a kernel that changes its registers is compiled for. */
static void register_budget(Cta* t, const Warp* last) {
  i32 share = 65536 / (32 * t->nwarps) / 8 * 8, sum = 0, asked = 0;
  if (share > 255) share = 255;
  for (int k = 0; k < t->nwarps; k++) {
    const Warp* w = &t->warps[k];
    asked |= w->maxnreg;
    sum += w->maxnreg ? w->maxnreg : share;
    if (w->maxnreg == t->warps[k & ~3].maxnreg) continue;
    Fault* f = fault(t->cluster, F_REGISTERS_DIFFER, w, w->maxnreg_pc, -1, 0);
    if (f) {
      f->a = w->maxnreg;
      f->b = t->warps[k & ~3].maxnreg;
    }
  }
  if (!asked || sum * 32 <= 65536) return;
  Fault* f = fault(t->cluster, F_REGISTERS, last, last->maxnreg_pc, -1, 0);
  if (f) {
    f->a = sum * 32;
    f->c = 2;
  }
}

void warp_exit(Warp* w) {
  Cta* t = w->cta;
  Cluster* c = t->cluster;
  if (races(c) && w->clock[C_BULK] > w->vc[comp_of(w, C_BULK)]) fault(c, F_EXIT_PENDING, w, w->pc, -1, 0);
  async_drain_warp(w, 1u << A_WGMMA | 1u << A_CP_ASYNC, -1, FULL);
  tmem_flush(w);
  w->status = EXITED;
  progressed(c);
  if (--t->live_warps == 0) register_budget(t, w);
  if (t->live_warps == 0 && t->held) {
    Fault* f = fault(c, F_TMEM_LEAK, w, w->pc, -1, 0);
    if (f) f->a = t->held;
  }
  cluster_check(c);
}
