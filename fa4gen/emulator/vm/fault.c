/* Faults as data: Python words them. Equal ones (same kind, same statements) are kept once. */
#include "vm.h"

static Fault* keep(Cluster* c, i32 kind, const Warp* w, i32 pc, i32 lane, u64 address, i32 other_pc) {
  Launch* L = c->launch;
  global_lock();
  Fault* f = NULL;
  for (int k = 0; k < L->nfaults && k < L->max_faults; k++)
    if (L->faults[k].kind == kind && L->faults[k].pc == pc && L->faults[k].other_pc == other_pc) {
      global_unlock();
      return NULL;
    }
  if (L->nfaults < L->max_faults) {
    f = &L->faults[L->nfaults++];
    memset(f, 0, sizeof *f);
    f->kind = kind;
    f->pc = pc;
    f->other_pc = other_pc;
    f->lane = lane;
    f->address = address;
    f->other_cta = f->other_warp = -1;
    f->cta = w ? (i32)w->cta->linear : -1;
    f->warp = w ? w->index : -1;
  }
  global_unlock();
  return f;
}

Fault* fault(Cluster* c, i32 kind, const Warp* w, i32 pc, i32 lane, u64 address) {
  return keep(c, kind, w, pc, lane, address, -1);
}
Fault* fault_pair(Cluster* c, i32 kind, const Warp* w, i32 pc, i32 lane, u64 address, i32 other_pc);
Fault* fault_pair(Cluster* c, i32 kind, const Warp* w, i32 pc, i32 lane, u64 address, i32 other_pc) {
  return keep(c, kind, w, pc, lane, address, other_pc);
}
Fault* fatal(Cluster* c, i32 kind, const Warp* w, i32 pc, i32 lane, u64 address) {
  c->fatal = 1;
  return keep(c, kind, w, pc, lane, address, -1);
}

/* a mask of CTAs names some, and none that the cluster has not */
int mask_fits(const Warp* w, u32 mask, i32 pc, i32 lane) {
  Cluster* c = w->cta->cluster;
  if (mask && !(mask >> c->nctas)) return 1;
  Fault* f = fatal(c, F_CTA_MASK, w, pc, lane, mask);
  if (f) f->a = c->nctas;
  return 0;
}

/* one record for each warp that cannot move: a = what it waits for (its status), b.. = the object's state */
void report_deadlock(Cluster* c) {
  c->launch->deadlocked = 1;
  c->fatal = 1;
  for (int k = 0; k < c->nctas; k++)
    for (int v = 0; v < c->ctas[k].nwarps; v++) {
      Warp* w = &c->ctas[k].warps[v];
      if (w->status == EXITED) continue;
      Launch* L = c->launch;
      global_lock();
      if (L->nfaults < L->max_faults) {
        Fault* f = &L->faults[L->nfaults++];
        memset(f, 0, sizeof *f);
        f->kind = F_DEADLOCK;
        f->pc = w->pc;
        f->cta = (i32)w->cta->linear;
        f->warp = w->index;
        f->lane = __builtin_ctz(w->active | 0x80000000u);
        f->other_pc = -1;
        f->a = w->status;
        f->other_cta = f->other_warp = -1;
        if (w->status == ON_MBAR && w->bar) {
          Bar* b = w->bar;
          int rank = (int)(b->comp - c->nwarps * C_PER_WARP) / MAX_BARS;
          f->address = (u64)rank << 24 | b->address;
          f->b = (i64)b->pending << 32 | b->expected;
          f->c = (i64)(b->phase - b->base) << 1 | (w->want & 1);
          f->d = (i64)(b->arrived & 0xffffffff) << 32 | (u32)(b->arrived_before & 0xffffffff);
          f->other_cta = (i32)b->tx;
          f->other_warp = (i32)(b->init_pc);
        } else if (w->status == ON_NAMED) {
          Named* n = &w->cta->named[w->named];
          f->address = (u64)w->named;
          f->b = (i64)n->arrived << 32 | n->expected;
          f->d = (i64)n->members;
        }
      }
      global_unlock();
    }
}
