/* Asynchronous operations: when they take effect is the seed's choice, within what the hardware orders.
 * Copies complete in any order; the tensor core's queue of a CTA in issue order; wgmma, cp.async and
 * tensor memory stores either at once or as late as the thread's own wait for them. */
#include <stdlib.h>
#include "vm.h"

#define NEVER (~0ull)

Async* async_new(Warp* w, i32 kind, int lane) {
  Cluster* c = w->cta->cluster;
  Async* a = c->free_ops;
  u32* vc = NULL;
  if (a) {
    c->free_ops = a->next;
    vc = a->vc;
  } else {
    a = malloc(sizeof *a);
    if (races(c)) vc = calloc_vc(c);
  }
  memset(a, 0, sizeof *a);
  a->vc = vc;
  a->kind = kind;
  a->warp = w;
  a->cta = w->cta;
  a->lane = lane;
  a->pc = w->pc;
  if (races(c)) memcpy(a->vc, w->vc, 4 * (size_t)c->dims);
  return a;
}

void async_free(Cluster* c, Async* a) {
  a->next = c->free_ops;
  c->free_ops = a;
}

static int piped(const Async* a) {
  return a->kind == A_MMA || a->kind == A_TC_CP || a->kind == A_TC_COMMIT || a->kind == A_TC_SHIFT;
}
static int own(const Async* a) { return a->kind == A_WGMMA || a->kind == A_CP_ASYNC; }

void async_complete(Cluster* c, Async* a) {
  progressed(c);
  switch (a->kind) {
    case A_TMA_LOAD:
    case A_TMA_STORE: tma_complete(c, a); break;
    case A_BULK_G2S:
    case A_BULK_S2S:
    case A_BULK_S2G:
    case A_ST_ASYNC: bulk_complete(c, a); break;
    case A_MMA:
    case A_TC_CP:
    case A_TC_COMMIT:
    case A_TC_SHIFT: tcgen05_complete(c, a); break;
    case A_CP_ASYNC:
    case A_CP_ARRIVE: copy_complete(c, a); break;
    case A_WGMMA: wgmma_complete(c, a); break;
    case A_CLC: clc_complete(c, a); break;
  }
}

static int earlier_pending(const Cluster* c, const Async* a) {
  for (const Async* p = c->pending; p; p = p->next)
    if (p->warp == a->warp && p->kind == a->kind) return 1;
  return 0;
}

static void append(Cluster* c, Async* a) {
  Async** p = &c->pending;
  while (*p) p = &(*p)->next;
  a->next = NULL;
  *p = a;
  c->npending++;
}

void async_issue(Cluster* c, Async* a, int policy) {
  u32 draw = rnd(c) & 255;
  int now = draw < c->p_now[policy], late = !now && (rnd(c) & 255) < c->p_late[policy];
  a->due = late ? NEVER : c->step + 1 + rnd(c) % 24;
  if (piped(a)) {
    Cta* t = a->cta;
    if (now && !t->pipe_head) {
      async_complete(c, a);
      async_free(c, a);
      return;
    }
    a->next = NULL;
    if (t->pipe_tail) t->pipe_tail->next = a;
    else t->pipe_head = a;
    t->pipe_tail = a;
    return;
  }
  if (now && !(own(a) && earlier_pending(c, a))) {
    async_complete(c, a);
    async_free(c, a);
    return;
  }
  append(c, a);
}

static void pop_pipe(Cluster* c, Cta* t) {
  Async* a = t->pipe_head;
  t->pipe_head = a->next;
  if (!t->pipe_head) t->pipe_tail = NULL;
  async_complete(c, a);
  async_free(c, a);
}

static void unlink_and_complete(Cluster* c, Async** p) {
  Async* a = *p;
  *p = a->next;
  c->npending--;
  async_complete(c, a);
  async_free(c, a);
}

/* completes what is due; with `force`, one operation of the seed's choice even if it is not. Returns whether
 * it did. */
int async_step(Cluster* c, int force) {
  int did = 0;
  for (int k = 0; k < c->nctas && !c->fatal; k++)
    while (c->ctas[k].pipe_head && c->ctas[k].pipe_head->due <= c->step && !c->fatal) {
      pop_pipe(c, &c->ctas[k]);
      did = 1;
    }
  for (Async** p = &c->pending; *p && !c->fatal;) {
    if ((*p)->due <= c->step && !own(*p)) {
      unlink_and_complete(c, p);
      did = 1;
      p = &c->pending;
    } else p = &(*p)->next;
  }
  if (did || !force || c->fatal) return did;
  u32 n = 0;
  for (int k = 0; k < c->nctas; k++) n += c->ctas[k].pipe_head != NULL;
  for (Async* p = c->pending; p; p = p->next) n += !own(p);
  if (!n) return 0;
  u32 pick = rnd(c) % n;
  for (int k = 0; k < c->nctas; k++)
    if (c->ctas[k].pipe_head && !pick--) {
      pop_pipe(c, &c->ctas[k]);
      return 1;
    }
  for (Async** p = &c->pending; *p; p = &(*p)->next)
    if (!own(*p) && !pick--) {
      unlink_and_complete(c, p);
      return 1;
    }
  return 0;
}

/* completes, in order, a warp's operations of the given kinds (a bit each) in groups below `below_group`;
 * lane -1 = all */
void async_drain_warp(Warp* w, u32 kinds, int lane, u32 below_group) {
  Cluster* c = w->cta->cluster;
  for (Async** p = &c->pending; *p && !c->fatal;) {
    Async* a = *p;
    if (a->warp == w && kinds >> a->kind & 1 && (lane < 0 || a->lane == lane) && a->group < below_group) {
      unlink_and_complete(c, p);
      p = &c->pending;
    } else p = &a->next;
  }
}
