/* A cluster's life: its CTAs and warps before they run, and what is left of them afterwards. */
#include <limits.h>
#include <stdlib.h>
#include "vm.h"

static void special(Warp* w, int which, u32* d, int lane) {
  Cta* t = w->cta;
  const Launch* L = t->cluster->launch;
  u32 linear = (u32)w->index * 32 + (u32)lane, v = 0;
  u32 cid[3], crank[3];
  for (int k = 0; k < 3; k++) {
    cid[k] = (u32)t->id[k] / L->cluster[k];
    crank[k] = (u32)t->id[k] % L->cluster[k];
  }
  switch (which) {
    case 0: v = linear % L->block[0]; break;
    case 1: v = linear / L->block[0] % L->block[1]; break;
    case 2: v = linear / L->block[0] / L->block[1]; break;
    case 3:
    case 4:
    case 5: v = L->block[which - 3]; break;
    case 6:
    case 7:
    case 8: v = (u32)t->id[which - 6]; break;
    case 9:
    case 10:
    case 11: v = L->grid[which - 9]; break;
    case 12: v = (u32)lane; break;
    case 13: v = (u32)w->index; break;
    case 14: v = (u32)t->nwarps; break;
    case 15:
    case 16:
    case 17: v = cid[which - 15]; break;
    case 18:
    case 19:
    case 20: v = L->grid[which - 18] / L->cluster[which - 18]; break;
    case 21:
    case 22:
    case 23: v = crank[which - 21]; break;
    case 24:
    case 25:
    case 26: v = L->cluster[which - 24]; break;
    case 27: v = (u32)t->rank; break;
    case 28: v = L->cluster[0] * L->cluster[1] * L->cluster[2]; break;
    case 29: v = 1u << lane; break;
    case 30: v = (1u << lane) - 1; break;
    case 31: v = (2u << lane) - 1; break;
    case 32: v = ~((2u << lane) - 1); break;
    case 33: v = ~((1u << lane) - 1); break;
    case 34: v = 0; break; /* smid */
    case 35: v = (u32)t->smem_bytes - SHARED_BASE; break; /* dynamic_smem_size and total_smem_size */
    case 36: v = 1; break;
    case 37: v = (u32)t->rank << 24 | SHARED_BASE; break; /* start of the shared window, for symbols */
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
  u32 threads = t->cluster->launch->block[0] * t->cluster->launch->block[1] * t->cluster->launch->block[2],
      left = threads - 32 * (u32)index;
  w->live = w->active = left >= 32 ? FULL : (1u << left) - 1;
  w->other_pc = INT_MAX;
  for (int k = 0; k < p->nspecials; k++)
    LANES
      special(w, p->specials[2 * k], (u32*)(w->regs + p->specials[2 * k + 1]), l);
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
  for (size_t k = 0; k < (size_t)t->smem_bytes; k += 4)
    memset(t->smem + k, 0xff, 4); /* unwritten memory: NaN in every type */
  t->bar_at = calloc((size_t)t->smem_bytes / 8 + 1, 2);
  t->bars = calloc(MAX_BARS, sizeof(Bar));
  t->tmem = malloc(4 * 128 * TMEM_COLUMNS);
  for (int k = 0; k < 128 * TMEM_COLUMNS; k++) t->tmem[k] = FULL;
  t->nwarps = t->live_warps = (i32)((L->block[0] * L->block[1] * L->block[2] + 31) / 32);
  t->warps = calloc((size_t)t->nwarps, sizeof(Warp));
  for (int k = 0; k < t->nwarps; k++) start_warp(&t->warps[k], t, k);
}

void begin_cluster(Cluster* c, Launch* L, u64 index) {
  memset(c, 0, sizeof *c);
  c->launch = L;
  c->program = &L->program;
  c->index = index;
  c->rng = (L->seed + 1) * 0x9e3779b97f4a7c15ull ^ (index + 1) * 0xbf58476d1ce4e5b9ull;
  for (int k = 0; k < 8; k++) rnd(c);
  c->nctas = (i32)(L->cluster[0] * L->cluster[1] * L->cluster[2]);
  u32 gx = L->grid[0] / L->cluster[0], gy = L->grid[1] / L->cluster[1];
  u32 origin[3] = {(u32)(index % gx) * L->cluster[0], (u32)(index / gx % gy) * L->cluster[1],
                   (u32)(index / gx / gy) * L->cluster[2]};
  c->ctas = calloc((size_t)c->nctas, sizeof(Cta));
  for (int k = 0; k < c->nctas; k++) start_cta(c, &c->ctas[k], k, origin);
  c->nwarps = c->nctas * c->ctas[0].nwarps;
  c->dims = c->nwarps * C_PER_WARP + c->nctas * MAX_BARS;
  race_begin(c);
}

void end_cluster(Cluster* c) {
  race_end(c);
  for (int k = 0; k < c->nctas; k++) {
    Cta* t = &c->ctas[k];
    while (t->pipe_head) {
      Async* a = t->pipe_head;
      t->pipe_head = a->next;
      async_free(c, a);
    }
    for (int v = 0; v < t->nwarps; v++) {
      free(t->warps[v].regs);
      for (int s = 0; s < t->warps[v].ntst; s++) free(t->warps[v].tst[s].data);
      free(t->warps[v].tst);
    }
    free(t->warps);
    free(t->smem);
    free(t->bar_at);
    free(t->bars);
    free(t->tmem);
  }
  while (c->pending) {
    Async* a = c->pending;
    c->pending = a->next;
    async_free(c, a);
  }
  while (c->free_ops) {
    Async* a = c->free_ops;
    c->free_ops = a->next;
    free(a->vc);
    free(a);
  }
  free(c->ctas);
}
