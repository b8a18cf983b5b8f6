/* Bulk copies without a map, their groups, cp.async, and cluster launch control. */
#include "vm.h"

#define NONE ((i32)0x80000000)
enum { GROUP2 = 1, MULTICAST = 2, OWN_CTA = 4, REDUCE = 8 };

static u64 shared_or_global(const Warp* w, i32 o, u32 wide, int lane) {
  return wide ? lane64(w, o, lane) : (u64)lane32(w, o, lane);
}

static void wait_groups(Warp* w, const Ins* i, u32 exec, u32* committed, Log* log, int component, u32 kinds) {
  Cluster* c = w->cta->cluster;
  u32 pending = (u32)i->imm;
  EACH (exec) async_drain_warp(w, kinds, (int)l, committed[l] > pending ? committed[l] - pending : 0);
  if (races(c)) stream_done(w, component, log_wait(log, exec, committed, pending, w->clock[component]));
}

/* o[1] destination, o[2] source, o[3] bytes, o[4] mbarrier, o[5] multicast mask; imm, target, mods2: offsets
 * of destination, source, mbarrier */
void bulk_operation(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  if (i->op == OP_BULK_COMMIT) {
    EACH (exec) w->bulk_group[l]++;
    return;
  }
  if (i->op == OP_BULK_WAIT) {
    wait_groups(w, i, exec, w->bulk_group, &w->bulk_log, C_BULK, 1u << A_TMA_STORE | 1u << A_BULK_S2G);
    return;
  }
  EACH (exec) {
    int kind = i->op == OP_BULK_G2S   ? A_BULK_G2S
               : i->op == OP_BULK_S2S ? A_BULK_S2S
               : i->op == OP_ST_ASYNC ? A_ST_ASYNC
                                      : A_BULK_S2G;
    Async* a = async_new(w, kind, (int)l);
    a->mods = i->mods;
    a->a = shared_or_global(w, i->o[1], kind == A_BULK_S2G, (int)l) + (u64)i->imm;
    if (kind == A_ST_ASYNC) {
      a->d = (u64)i->n * (i->mods >> 16 & 15);
      for (int k = 0; k < i->n && k < 4; k++) {
        i32 o = c->program->ext[i->ext + k];
        a->lane_mask[k * 2] = (i->mods >> 16 & 15) == 8 ? (u32)lane64(w, o, (int)l) : lane32(w, o, (int)l);
        a->lane_mask[k * 2 + 1] = (i->mods >> 16 & 15) == 8 ? (u32)(lane64(w, o, (int)l) >> 32) : 0;
      }
    } else {
      a->b = shared_or_global(w, i->o[2], kind == A_BULK_G2S, (int)l) + (u64)i->target;
      a->d = lane32(w, i->o[3], (int)l);
    }
    if (i->o[4] != NONE) a->c = lane32(w, i->o[4], (int)l) + i->mods2;
    if (i->mods & MULTICAST) {
      a->mask = lane32(w, i->o[5], (int)l) & 0xffff;
      if (!mask_fits(w, a->mask, a->pc, (int)l)) return;
    }
    if (kind != A_ST_ASYNC && ((a->d & 15) || (a->a & 15) || (a->b & 15))) {
      Fault* f = fatal(c, F_MISALIGNED, w, a->pc, (int)l, a->a & 15 ? a->a : a->b);
      if (f) f->a = 16;
      return;
    }
    Cta* t;
    if (kind == A_BULK_S2G || kind == A_BULK_S2S) { /* the source is this CTA's shared memory */
      if (!shared_at(w, (u32)a->b, (u32)a->d, 0, (int)l, a->pc, &t)) return;
      if (kind == A_BULK_S2G) {
        a->group = w->bulk_group[l];
        a->clock = ++w->clock[C_BULK];
        if (races(c)) {
          log_add(&w->bulk_log, l, a->group, a->clock);
          Actor actor = {w->vc, (u32)comp_of(w, C_BULK), a->clock, a->pc, w->id, (int)l, 1};
          race_smem(c, t, (u32)a->b & 0xffffff, (u32)a->d, 0, &actor);
        }
      }
    }
    if (kind != A_BULK_S2G)
      for (int k = 0; k < c->nctas; k++) {
        int hit = i->mods & MULTICAST ? a->mask >> k & 1 : k == (int)(a->a >> 24);
        if (!hit) continue;
        u32 offset = (u32)a->a & 0xffffff, rank = i->mods & MULTICAST ? (u32)k : (u32)(a->c >> 24);
        if (!shared_at(w, (u32)k << 24 | offset, (u32)a->d, 1, (int)l, a->pc, &t)) return;
        if ((int)rank >= c->nctas) {
          fatal(c, F_BOUNDS, w, a->pc, (int)l, a->c);
          return;
        }
        Bar* b = bar_at(w, &c->ctas[rank], (u32)a->c & 0xffffff, a->pc, (int)l);
        if (!b) return;
        a->phase[k] = b->phase;
        if (!races(c)) continue;
        race_bar_use(w, &c->ctas[rank], b, 1, a->pc, (int)l);
        Actor actor = {w->vc, b->comp, b->phase + 1, a->pc, w->id, (int)l, 1};
        race_smem(c, t, offset, (u32)a->d, 1, &actor);
        if (kind == A_BULK_S2S) {
          actor.comp = b->comp;
          race_smem(c, w->cta, (u32)a->b & 0xffffff, (u32)a->d, 0, &actor);
        }
      }
    async_issue(c, a, kind == A_BULK_S2G ? P_STORE : P_TMA);
    if (c->fatal) return;
  }
}

static void reduce(const Async* a, u8* g, const u8* s) {
  u32 op = a->mods >> 8 & 255, type = a->mods >> 16 & 15, z = a->mods >> 20 & 15;
  global_lock();
  for (u64 k = 0; k < a->d; k += z) {
    u64 old = 0, v = 0;
    memcpy(&old, g + k, z);
    memcpy(&v, s + k, z);
    u64 now = atomic_combine(op, type, old, v, 0);
    memcpy(g + k, &now, z);
  }
  global_unlock();
}

void bulk_complete(Cluster* c, Async* a) {
  if (a->kind == A_BULK_S2G) {
    const u8* s = c->ctas[a->b >> 24].smem + (a->b & 0xffffff);
    u8* g = global_at(c, a->warp, a->a, (u32)a->d, a->lane, a->pc, a->mods & REDUCE ? 2 : 1);
    if (!g) return;
    if (a->mods & REDUCE) reduce(a, g, s);
    else memcpy(g, s, a->d);
    return;
  }
  const u8* s = a->kind == A_BULK_G2S   ? global_at(c, a->warp, a->b, (u32)a->d, a->lane, a->pc, 0)
                : a->kind == A_ST_ASYNC ? (u8*)a->lane_mask
                                        : a->warp->cta->smem + (a->b & 0xffffff);
  if (!s) return;
  for (int k = 0; k < c->nctas; k++) {
    int multicast = a->mods & MULTICAST;
    if (!(multicast ? a->mask >> k & 1 : k == (int)(a->a >> 24))) continue;
    u8* d = c->ctas[k].smem + (a->a & 0xffffff);
    if (a->kind == A_ST_ASYNC) {
      u32 z = a->mods >> 16 & 15;
      for (u64 e = 0; e < a->d / z; e++) memcpy(d + e * z, s + e * 8, z);
    } else memcpy(d, s, a->d);
    Cta* t = &c->ctas[multicast ? k : (int)(a->c >> 24)];
    Bar* b = bar_at(a->warp, t, (u32)a->c & 0xffffff, a->pc, a->lane);
    if (!b) return;
    if (b->phase != a->phase[k]) {
      Fault* f = fault(c, F_PHASE_BYTES, a->warp, a->pc, a->lane, a->c);
      if (f) {
        f->a = b->phase - b->base;
        f->b = a->phase[k] - b->base;
      }
    }
    if (races(c)) {
      publish_async(c, a, b->acc);
      vc_join(b->cum, a->vc, c->dims);
    }
    bar_tx(c, t, b, -(i64)a->d, a->warp, a->pc, a->lane);
  }
}

/* cp.async: o[1] destination, o[2] source, o[3] bytes read; imm: destination offset, mods2: source offset,
 * mods: bytes written */
void copy_operation(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  if (i->op == OP_CP_ASYNC_COMMIT) {
    EACH (exec) w->cp_group[l]++;
    return;
  }
  if (i->op == OP_CP_ASYNC_WAIT) {
    if (i->mods & 1)
      EACH (exec) w->cp_group[l]++; /* wait_all: commit, then wait for 0 */
    wait_groups(w, i, exec, w->cp_group, &w->cp_log, C_CPASYNC, 1u << A_CP_ASYNC);
    return;
  }
  u32 clock = ++w->clock[C_CPASYNC];
  EACH (exec) {
    Async* a = async_new(w, i->op == OP_CP_ASYNC ? A_CP_ASYNC : A_CP_ARRIVE, (int)l);
    a->group = w->cp_group[l];
    a->clock = clock;
    a->b = lane32(w, i->o[1], (int)l) + (u32)i->imm;
    Cta* t;
    if (i->op == OP_CP_ASYNC) {
      a->c = lane64(w, i->o[2], (int)l) + i->mods2;
      a->d = i->mods;
      a->e = i->o[3] == NONE ? i->mods : lane32(w, i->o[3], (int)l);
      if (!shared_at(w, (u32)a->b, i->mods, 0, (int)l, a->pc, &t)) return;
      if (a->b % i->mods || (a->e && a->c % i->mods)) {
        fatal(c, F_MISALIGNED, w, a->pc, (int)l, a->b);
        return;
      }
      if (races(c)) {
        log_add(&w->cp_log, l, a->group, clock);
        Actor actor = {w->vc, (u32)comp_of(w, C_CPASYNC), clock, a->pc, w->id, (int)l, 0};
        race_smem(c, t, (u32)a->b & 0xffffff, i->mods, 1, &actor);
      }
      async_issue(c, a, P_CPASYNC);
    } else {
      a->mods = i->mods;
      if (!shared_at(w, (u32)a->b, 8, 0, (int)l, a->pc, &t)) return;
      Bar* b = bar_at(w, t, (u32)a->b & 0xffffff, a->pc, (int)l);
      if (!b) return;
      if (!(i->mods & 1)) b->pending++; /* without .noinc the arrival is not part of the count */
      async_issue(c, a, P_TMA);
    }
    if (c->fatal) return;
  }
}

void copy_complete(Cluster* c, Async* a) {
  if (a->kind == A_CP_ASYNC) {
    u8* d = a->cta->smem + (a->b & 0xffffff);
    if (a->e) {
      u8* g = global_at(c, a->warp, a->c, (u32)a->e, a->lane, a->pc, 0);
      if (!g) return;
      memcpy(d, g, a->e);
    }
    memset(d + a->e, 0, a->d - a->e);
    return;
  }
  async_drain_warp(a->warp, 1u << A_CP_ASYNC, a->lane, FULL);
  Bar* b = bar_at(a->warp, a->cta, (u32)a->b & 0xffffff, a->pc, a->lane);
  if (!b) return;
  if (races(c)) {
    vc_join(b->acc, a->vc, c->dims); /* the thread's own arrival: its earlier ordinary writes come along */
    u32 comp = (u32)comp_of(a->warp, C_CPASYNC);
    if (b->acc[comp] < a->clock) b->acc[comp] = a->clock;
    vc_join(b->cum, a->vc, c->dims);
  }
  bar_arrive(c, a->cta, b, 1, a->warp, a->pc, a->lane);
}

/* clusterlaunchcontrol: o[1] response address, o[2] mbarrier; query: o[0] destination, o[1..2] halves of the
 * response */
void clc_operation(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  if (i->op == OP_CLC_QUERY) {
    EACH (exec) {
      u64 lo = lane64(w, i->o[4], (int)l), hi = lane64(w, i->o[5], (int)l);
      if (i->mods == 0) {
        u32* p = r32(w, i->o[0]);
        *p = (*p & ~(1u << l)) | (u32)(hi & 1) << l;
        continue;
      }
      u32 id[4] = {(u32)lo, (u32)(lo >> 32), (u32)(hi >> 32), 0};
      for (int k = 0; k < 4; k++)
        if (i->o[k] != NONE) r32(w, i->o[k])[l] = i->mods == 1 ? id[k] : id[i->mods - 2];
    }
    return;
  }
  EACH (exec) {
    Async* a = async_new(w, A_CLC, (int)l);
    a->b = lane32(w, i->o[1], (int)l) + (u32)i->imm;
    a->c = lane32(w, i->o[2], (int)l) + i->mods2;
    a->mods = i->mods;
    for (int k = 0; k < c->nctas; k++) {
      if (!(i->mods & MULTICAST) && k != w->cta->rank) continue;
      Cta* t;
      if (!shared_at(w, (u32)k << 24 | (a->b & 0xffffff), 16, 1, (int)l, a->pc, &t)) return;
      Bar* b = bar_at(w, t, (u32)a->c & 0xffffff, a->pc, (int)l);
      if (!b) return;
      a->phase[k] = b->phase;
      if (!races(c)) continue;
      race_bar_use(w, t, b, 1, a->pc, (int)l);
      Actor actor = {w->vc, b->comp, b->phase + 1, a->pc, w->id, (int)l, 1};
      race_smem(c, t, (u32)a->b & 0xffffff, 16, 1, &actor);
    }
    async_issue(c, a, P_TMA);
  }
}

void clc_complete(Cluster* c, Async* a) {
  Launch* L = c->launch;
  u64 total = (u64)(L->grid[0] / L->cluster[0]) * (L->grid[1] / L->cluster[1]) * (L->grid[2] / L->cluster[2]);
  u64 next = __atomic_fetch_add(&L->next_cluster, 1, __ATOMIC_RELAXED), words[2] = {0, 0};
  if (next < total) {
    u32 gx = L->grid[0] / L->cluster[0], gy = L->grid[1] / L->cluster[1];
    __atomic_fetch_add(&L->clusters_done, 1, __ATOMIC_RELAXED);
    words[0] = (next % gx) * L->cluster[0] | (u64)((next / gx) % gy * L->cluster[1]) << 32;
    words[1] = 1 | (u64)(next / gx / gy * L->cluster[2]) << 32;
  }
  for (int k = 0; k < c->nctas; k++) {
    if (!(a->mods & MULTICAST) && k != a->cta->rank) continue;
    Cta* t = &c->ctas[k];
    memcpy(t->smem + (a->b & 0xffffff), words, 16);
    Bar* b = bar_at(a->warp, t, (u32)a->c & 0xffffff, a->pc, a->lane);
    if (!b) return;
    if (races(c)) {
      publish_async(c, a, b->acc);
      vc_join(b->cum, a->vc, c->dims);
    }
    bar_tx(c, t, b, -16, a->warp, a->pc, a->lane);
  }
}
