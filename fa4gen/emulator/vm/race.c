/* Happens-before by vector clocks. Every warp owns a component for its ordinary accesses, two for those of
 * them that fences handed to the asynchronous proxy or to barrier users, and one for each stream of
 * asynchronous operations, one that counts its waits (execution alone); every mbarrier owns one for the bytes
 * that its phases bring. */
#include <stdlib.h>
#include "vm.h"

u32* calloc_vc(const Cluster* c) { return calloc((size_t)c->dims, 4); }
int comp_of(const Warp* w, int component) { return w->id * C_PER_WARP + component; }

void vc_join(u32* restrict into, const u32* restrict from, int dims) {
  for (int k = 0; k < dims; k++) into[k] = into[k] > from[k] ? into[k] : from[k];
}

void warp_release(Warp* w) { w->vc[comp_of(w, C_GENERIC)] = ++w->clock[C_GENERIC]; }

void publish(Warp* w, u32* into, int relaxed) {
  Cluster* c = w->cta->cluster;
  if (!relaxed) {
    vc_join(into, w->vc, c->dims);
    return;
  }
  vc_join(into, w->fence, c->dims);
  for (int k = 0; k < c->nwarps; k++) {
    vc_join(into + k * C_PER_WARP + C_INIT, w->vc + k * C_PER_WARP + C_INIT, 1);
    vc_join(into + k * C_PER_WARP + C_EXECUTED, w->vc + k * C_PER_WARP + C_EXECUTED, 1);
  }
}

void acquire(Warp* w, const u32* from) { vc_join(w->vc, from, w->cta->cluster->dims); }

/* what an asynchronous arrival hands over: all that its issuer had learnt, but none of the issuer's own
 * ordinary accesses */
void publish_async(Cluster* c, const Async* a, u32* into) {
  int own = comp_of(a->warp, C_GENERIC);
  u32 g = into[own], f = into[own + 1];
  vc_join(into, a->vc, c->dims);
  into[own] = g;
  into[own + 1] = f;
}

Actor generic_actor(Warp* w, i32 pc, int lane) {
  Actor a = {w->vc, (u32)comp_of(w, C_GENERIC), w->clock[C_GENERIC], pc, w->id, lane, 0};
  return a;
}

/* an operation of a stream that the hardware keeps in issue order: it comes after the stream's earlier ones
 */
void tensor_actor(Warp* w, int component, i32 pc, int lane, Actor* a) {
  Cluster* c = w->cta->cluster;
  int comp = comp_of(w, component);
  if (races(c)) {
    memcpy(c->scratch_vc, w->vc, 4 * (size_t)c->dims);
    c->scratch_vc[comp] = w->clock[component];
  }
  Actor made = {c->scratch_vc, (u32)comp, w->clock[component], pc, w->id, lane, 1};
  *a = made;
}

static void report(Cluster* c, i32 kind, const Actor* a, u64 address, u32 comp, i32 other_pc, int tensor) {
  const Warp* w = NULL;
  for (int k = 0; k < c->nctas; k++)
    if (a->warp >= k * c->ctas[k].nwarps && a->warp < (k + 1) * c->ctas[k].nwarps)
      w = &c->ctas[k].warps[a->warp % c->ctas[k].nwarps];
  Fault* f = fault_pair(c, kind, w, a->pc, a->lane, address, other_pc);
  if (!f) return;
  f->a = tensor;
  f->b = a->async;
  if (comp < (u32)c->nwarps * C_PER_WARP) {
    int id = (int)comp / C_PER_WARP, per = c->ctas[0].nwarps;
    f->other_cta = (i32)c->ctas[id / per].linear;
    f->other_warp = id % per;
    f->c = comp % C_PER_WARP;
  } else f->c = -1;
}

enum { W_GENERIC = 1, W_ATOMIC = 2 };

static void touch(Cluster* c, Cell* cell, u8 mask, int write, const Actor* a, u64 address, int tensor) {
  const u32* vc = a->vc;
  if (cell->wclock) {
    int together = write == 2 && cell->wflags & W_ATOMIC;
    if (cell->wmask & mask && !together) {
      if (vc[cell->wcomp] < cell->wclock)
        report(c, write ? F_RACE_WAW : F_RACE_RAW, a, address, cell->wcomp, cell->wpc, tensor);
      else if ((a->async & (1 | ASYNC_LENIENT)) && cell->wflags & W_GENERIC &&
               vc[cell->wcomp + 1] < cell->wclock)
        report(c, F_PROXY, a, address, cell->wcomp, cell->wpc, tensor);
    }
  } else if (!write && a->async != ASYNC_LENIENT) {
    report(c, tensor ? F_UNINIT_TMEM : F_UNINIT_SMEM, a, address, a->comp, -1, tensor);
  }
  if (!write) {
    int slot = -1;
    for (int k = 0; k < 4; k++)
      if (cell->r[k].clock && cell->r[k].comp == a->comp) slot = k;
    for (int k = 0; k < 4 && slot < 0; k++)
      if (!cell->r[k].clock || vc[cell->r[k].comp] >= cell->r[k].clock) slot = k;
    if (slot < 0) slot = a->pc & 3;
    cell->r[slot].clock = a->clock;
    cell->r[slot].comp = (u16)a->comp;
    cell->r[slot].pc = a->pc;
    return;
  }
  for (int k = 0; k < 4; k++) {
    if (cell->r[k].clock && vc[cell->r[k].comp] < cell->r[k].clock)
      report(c, F_RACE_WAR, a, address, cell->r[k].comp, cell->r[k].pc, tensor);
    cell->r[k].clock = 0;
  }
  cell->wclock = a->clock;
  cell->wcomp = (u16)a->comp;
  cell->wmask = mask;
  cell->wpc = a->pc;
  cell->wflags =
      (u8)(((!a->async || a->async == BY_BARRIER) && !tensor && a->comp % C_PER_WARP == C_GENERIC ? W_GENERIC
                                                                                                  : 0) |
           (write == 2 ? W_ATOMIC : 0));
}

void race_smem(Cluster* c, Cta* t, u32 offset, u32 bytes, int write, const Actor* a) {
  if (!races(c)) return;
  if (a->async != BY_BARRIER && offset < t->bars_to && offset + bytes > t->bars_from)
    for (u32 k = offset >> 3; k <= (offset + bytes - 1) >> 3; k++)
      if (t->bar_at[k] && t->bars[t->bar_at[k] - 1].live) {
        report(c, F_BAR_DATA, a, (u64)t->rank << 24 | k << 3, a->comp, -1, 0);
        break;
      }
  for (u32 g = offset >> 2; g <= (offset + bytes - 1) >> 2; g++) {
    u32 lo = g << 2 < offset ? offset & 3 : 0,
        hi = (g << 2) + 4 > offset + bytes ? (offset + bytes) - (g << 2) : 4;
    touch(c, &t->smem_cells[g], (u8)(((1u << hi) - 1) & ~((1u << lo) - 1)), write, a,
          (u64)t->rank << 24 | g << 2, 0);
  }
}

/* tensor memory is kept by column and by 16 lanes */
void race_tmem(Cluster* c, Cta* t, u32 lane, u32 lanes, u32 column, u32 columns, int write, const Actor* a) {
  if (!races(c)) return;
  for (u32 k = column; k < column + columns && k < TMEM_COLUMNS; k++)
    for (u32 q = lane / 16; q < (lane + lanes) / 16 && q < 8; q++)
      touch(c, &t->tmem_cells[k * 8 + q], 1, write, a, (u64)(q * 16) << 16 | k, 1);
}

void stream_done(Warp* w, int component, u32 clock) {
  if (!races(w->cta->cluster)) return;
  u32* v = &w->vc[comp_of(w, component)];
  if (clock > *v) *v = clock;
}

void log_add(Log* g, u32 lane, u32 group, u32 clock) {
  if (g->n == g->capacity) {
    g->capacity = g->capacity ? 2 * g->capacity : 64;
    g->entries = realloc(g->entries, (size_t)g->capacity * sizeof *g->entries);
  }
  LogEntry e = {lane, group, clock};
  g->entries[g->n++] = e;
}

/* forgets what is in groups that may no longer be pending; returns the newest clock below which all is done
 */
u32 log_wait(Log* g, u32 lanes, const u32* groups, u32 pending, u32 newest) {
  int n = 0;
  u32 done = newest;
  for (int k = 0; k < g->n; k++) {
    LogEntry e = g->entries[k];
    if (lanes >> e.lane & 1 && e.group + pending < groups[e.lane]) continue;
    g->entries[n++] = e;
    if (e.clock - 1 < done) done = e.clock - 1;
  }
  g->n = n;
  return done;
}

void race_bar_use(Warp* w, Cta* t, Bar* b, int async, i32 pc, int lane) {
  Cluster* c = w->cta->cluster;
  if (!races(c)) return;
  const u32* v = w->vc + b->init_warp * C_PER_WARP;
  int fenced = v[C_INIT] >= b->init_clock || v[C_FENCED] >= b->init_clock;
  if (async ? fenced : v[C_GENERIC] >= b->init_clock || fenced) return;
  Fault* f = fault_pair(c, F_INIT_FENCE, w, pc, lane, (u64)t->rank << 24 | b->address, b->init_pc);
  if (f) f->a = async;
}

void race_begin(Cluster* c) {
  if (!races(c)) return;
  const Program* p = c->program;
  size_t slots = (size_t)p->reg_bytes / 128 + 1;
  c->scratch_vc = calloc_vc(c);
  c->barrier_acc = calloc_vc(c);
  c->barrier_done = calloc_vc(c);
  for (int k = 0; k < c->nctas; k++) {
    Cta* t = &c->ctas[k];
    t->smem_cells = calloc((size_t)t->smem_bytes / 4 + 1, sizeof(Cell));
    t->pipe_known = calloc_vc(c);
    t->tmem_cells = calloc(TMEM_COLUMNS * 8, sizeof(Cell));
    for (int n = 0; n < NAMED_BARRIERS; n++) t->named[n].acc = calloc_vc(c);
    for (int v = 0; v < t->nwarps; v++) {
      Warp* w = &t->warps[v];
      w->vc = calloc_vc(c);
      w->fence = calloc_vc(c);
      w->ldmap = calloc(slots, 1);
      w->wgmap = calloc(slots, 4);
      w->stamp_of = calloc(slots, 4);
      w->clock[C_GENERIC] = w->vc[comp_of(w, C_GENERIC)] = 1;
    }
  }
}

void race_end(Cluster* c) {
  free(c->scratch_vc);
  free(c->barrier_acc);
  free(c->barrier_done);
  for (int k = 0; k < c->nctas; k++) {
    Cta* t = &c->ctas[k];
    free(t->pipe_known);
    free(t->smem_cells);
    free(t->tmem_cells);
    for (int n = 0; n < NAMED_BARRIERS; n++) free(t->named[n].acc);
    for (int b = 0; b < t->nbars; b++) {
      free(t->bars[b].acc);
      free(t->bars[b].done);
      free(t->bars[b].cum);
    }
    for (int v = 0; v < t->nwarps; v++) {
      Warp* w = &t->warps[v];
      free(w->vc);
      free(w->fence);
      free(w->ldmap);
      free(w->wgmap);
      free(w->stamp_of);
      free(w->bulk_log.entries);
      free(w->cp_log.entries);
      free(w->wg_log.entries);
    }
  }
}
