/* Tensor copies by the 128-byte tensor map: loads, stores and reductions, in tile mode, interleave none. */
#include "vm.h"

#define NONE ((i32)0x80000000)
enum { GROUP2 = 1, MULTICAST = 2, OWN_CTA = 4, REDUCE = 8 };

typedef struct {
  u8* base;
  int rank, type, z, swizzle, nan;
  i64 dim[5], stride[5];
  u32 box[5], step[5];
} Map;

static int decode(Cluster* c, const Async* a, const u8* raw, Map* m) {
  static const u8 size[16] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 0, 0, 0, 0, 0};
  u64 q[8];
  memcpy(q, raw, 64);
  m->base = (u8*)(q[0] & ((1ull << 57) - 1));
  m->rank = (int)(q[1] >> 4 & 7) + 1;
  m->type = (int)(q[1] >> 7 & 15);
  m->z = size[m->type];
  m->swizzle = (int)(q[1] >> 13 & 3);
  m->nan = (int)(q[1] >> 15 & 1);
  u64 low[4] = {q[1] >> 32, q[2] & FULL, q[2] >> 32, q[3] & FULL};
  u32 dims[5] = {(u32)q[4], (u32)(q[4] >> 32), (u32)q[5], (u32)(q[5] >> 32), (u32)q[6]};
  u8 box[5] = {(u8)(q[6] >> 56), (u8)q[7], (u8)(q[7] >> 8), (u8)(q[7] >> 16), (u8)(q[7] >> 24)};
  m->stride[0] = m->z;
  for (int d = 0; d < 5; d++) {
    if (d) m->stride[d] = (i64)(16 * (low[d - 1] | (q[3] >> (28 + 4 * d) & 15) << 32));
    m->dim[d] = d < m->rank ? (i64)dims[d] + 1 : 1;
    m->step[d] = d ? (u32)(q[6] >> (32 + 3 * d) & 7) + 1 : 1;
    m->box[d] = d < m->rank ? (box[d] + m->step[d]) / m->step[d] : 1;
  }
  if (m->rank > 5 || !m->z || q[1] >> 11 & 3 || m->box[0] * (u32)m->z % 16) {
    Fault* f = fatal(c, F_DESCRIPTOR, a->warp, a->pc, a->lane, (u64)(uintptr_t)raw);
    if (f) {
      f->a = 1;
      f->b = (i64)q[1];
    }
    return 0;
  }
  return 1;
}

static inline u32 swizzle(u32 s, int mode) { return mode ? s ^ ((s >> 7 & ((1u << mode) - 1)) << 4) : s; }

static u64 box_bytes(const Map* m) {
  return (u64)m->z * m->box[0] * m->box[1] * m->box[2] * m->box[3] * m->box[4];
}

/* calls back for every 16-byte unit of the box: smem offset (swizzled), address of its first element or 0
 * where it is outside, elements inside */
typedef struct {
  Cluster* c;
  Async* a;
  const Map* m;
  u8* smem;
  u32 dst;
  int store;
} Walk;

static void reduce16(const Map* m, u32 op, u8* g, const u8* s, int bytes) {
  static const u8 kind[16] = {0, 0, 0, 1, 2, 3, 6, 4, 4, 5, 7, 0, 0, 0, 0, 0};
  global_lock();
  for (int k = 0; k < bytes; k += m->z) {
    u64 old = 0, v = 0;
    memcpy(&old, g + k, (size_t)m->z);
    memcpy(&v, s + k, (size_t)m->z);
    u64 now = atomic_combine(op, kind[m->type], old, v, 0);
    memcpy(g + k, &now, (size_t)m->z);
  }
  global_unlock();
}

static void row(Walk* k, u32 lin, u8* g, int inside) {
  const Map* m = k->m;
  int per = 16 / m->z;
  i64 x = k->a->coord[0];
  for (u32 u = 0; u < m->box[0] * (u32)m->z / 16; u++, x += per, lin += 16) {
    u8* s = k->smem + swizzle(lin, m->swizzle);
    i64 lo = x < 0 ? -x : 0, hi = m->dim[0] - x;
    if (hi > per) hi = per;
    if (!inside || lo >= hi) {
      if (!k->store) {
        for (int b = 0; b < 16; b++) s[b] = m->nan ? 0xff : 0;
      }
      continue;
    }
    u8* at = g + (x + lo) * m->z;
    size_t bytes = (size_t)((hi - lo) * m->z);
    if (k->store && k->a->mods & REDUCE) reduce16(m, k->a->mods >> 8, at, s + lo * m->z, (int)bytes);
    else if (k->store) memcpy(at, s + lo * m->z, bytes);
    else {
      if (bytes < 16)
        for (int b = 0; b < 16; b++) s[b] = m->nan ? 0xff : 0;
      memcpy(s + lo * m->z, at, bytes);
    }
  }
}

static int walk(Walk* k) {
  const Map* m = k->m;
  const Async* a = k->a;
  u32 pitch = m->box[0] * (u32)m->z, lin = k->dst;
  i64 first = a->coord[0] < 0 ? 0 : a->coord[0], last = a->coord[0] + m->box[0];
  if (last > m->dim[0]) last = m->dim[0];
  /* loads fault where the descriptor's own base lies in no allocation (seen on an H200), stores do not
     (Dao-AILab/quack, AI/ragged_tma_ptr_shift_finding.md) */
  if (!k->store && !global_at(k->c, a->warp, (u64)(uintptr_t)m->base, 1, a->lane, a->pc, 3)) return 0;
  for (u32 e = 0; e < m->box[4]; e++)
    for (u32 d = 0; d < m->box[3]; d++)
      for (u32 c = 0; c < m->box[2]; c++)
        for (u32 b = 0; b < m->box[1]; b++, lin += pitch) {
          i64 x[5] = {0, a->coord[1] + (i64)b * m->step[1], a->coord[2] + (i64)c * m->step[2],
                      a->coord[3] + (i64)d * m->step[3], a->coord[4] + (i64)e * m->step[4]};
          int inside = first < last;
          u8* g = m->base;
          for (int n = 1; n < 5; n++) {
            inside &= x[n] >= 0 && x[n] < m->dim[n];
            g += (u64)x[n] * (u64)m->stride[n]; /* modulo 2^64, as the hardware does */
          }
          if (inside && !global_at(k->c, a->warp, (u64)(uintptr_t)g + (u64)first * (u64)m->z,
                                   (u32)(last - first) * (u32)m->z, a->lane, a->pc,
                                   !k->store          ? 0
                                   : a->mods & REDUCE ? 2
                                                      : 1))
            return 0;
          row(k, lin, g, inside);
        }
  return 1;
}

/* the CTAs that a load writes to, and the barrier of each */
static int targets(Cluster* c, const Async* a, Cta** data, Cta** bars) {
  int n = 0, rank = a->mods & OWN_CTA ? a->cta->rank : (int)(a->b >> 24), bar = (int)(a->c >> 24);
  if (!(a->mods & MULTICAST)) {
    data[0] = &c->ctas[rank % c->nctas];
    bars[0] = &c->ctas[bar % c->nctas];
    return 1;
  }
  for (int k = 0; k < c->nctas; k++)
    if (a->mask >> k & 1) {
      data[n] = &c->ctas[k];
      bars[n++] = &c->ctas[a->mods & GROUP2 ? (k & ~1) | (bar & 1) : k];
    }
  return n;
}

static void begin_load(Warp* w, Async* a, const Map* m) {
  Cluster* c = w->cta->cluster;
  Cta *data[16], *bars[16];
  int n = targets(c, a, data, bars);
  for (int k = 0; k < n && !c->fatal; k++) {
    u32 offset = (u32)a->b & 0xffffff;
    Cta* t;
    if (!shared_at(w, (u32)data[k]->rank << 24 | offset, (u32)box_bytes(m), 1, a->lane, a->pc, &t)) return;
    Bar* b = bar_at(w, bars[k], (u32)a->c & 0xffffff, a->pc, a->lane);
    if (!b) return;
    if (!(a->mods & GROUP2) && bars[k] != data[k]) {
      fatal(c, F_ILLEGAL, w, a->pc, a->lane, a->c);
      return;
    }
    a->phase[data[k]->rank] = b->phase;
    if (!races(c)) continue;
    race_bar_use(w, bars[k], b, 1, a->pc, a->lane);
    Actor actor = {w->vc, b->comp, b->phase + 1, a->pc, w->id, a->lane, 1};
    race_smem(c, t, offset, (u32)box_bytes(m), 1, &actor);
  }
}

static void begin_store(Warp* w, Async* a, const Map* m) {
  Cluster* c = w->cta->cluster;
  Cta* t;
  if (!shared_at(w, (u32)a->b, (u32)box_bytes(m), 0, a->lane, a->pc, &t)) return;
  a->group = w->bulk_group[a->lane];
  a->clock = ++w->clock[C_BULK];
  if (!races(c)) return;
  log_add(&w->bulk_log, (u32)a->lane, a->group, a->clock);
  Actor actor = {w->vc, (u32)comp_of(w, C_BULK), a->clock, a->pc, w->id, a->lane, 1};
  race_smem(c, t, (u32)a->b & 0xffffff, (u32)box_bytes(m), 0, &actor);
}

/* o[1] smem, o[2] map, o[3] mbarrier, o[4] multicast mask; ext: coordinates; imm: smem offset, target:
 * mbarrier offset, mods2: map offset */
void tma_issue(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  const i32* coords = c->program->ext + i->ext;
  EACH (exec) {
    int store = i->op == OP_TMA_STORE;
    Async* a = async_new(w, store ? A_TMA_STORE : A_TMA_LOAD, (int)l);
    a->mods = i->mods;
    const u8* raw = map_at(w, lane64(w, i->o[2], (int)l) + i->mods2, a->pc, (int)l);
    Map m;
    if (!raw || !decode(c, a, raw, &m)) return;
    a->a = (u64)(uintptr_t)raw;
    a->b = lane32(w, i->o[1], (int)l) + (u32)i->imm;
    for (int k = 0; k < i->n; k++) a->coord[k] = (i32)lane32(w, coords[k], (int)l);
    if (i->n != m.rank || (u32)a->b & 127) {
      Fault* f = fatal(c, (u32)a->b & 127 ? F_MISALIGNED : F_DESCRIPTOR, w, a->pc, (int)l, a->b);
      if (f) f->a = 128;
      return;
    }
    if (!store) {
      a->c = lane32(w, i->o[3], (int)l) + (u32)i->target;
      if (i->mods & OWN_CTA) a->b = (a->b & 0xffffff) | (u64)w->cta->rank << 24;
      if (i->mods & MULTICAST) {
        a->mask = lane32(w, i->o[4], (int)l) & 0xffff;
        if (!mask_fits(w, a->mask, a->pc, (int)l)) return;
      }
      begin_load(w, a, &m);
    } else begin_store(w, a, &m);
    if (c->fatal) return;
    async_issue(c, a, store ? P_STORE : P_TMA);
  }
}

void tma_complete(Cluster* c, Async* a) {
  Map m;
  if (!decode(c, a, (const u8*)(uintptr_t)a->a, &m)) return;
  Walk k = {c, a, &m, NULL, (u32)a->b & 0xffffff, a->kind == A_TMA_STORE};
  if (k.store) {
    k.smem = c->ctas[a->b >> 24].smem;
    walk(&k);
    return;
  }
  Cta *data[16], *bars[16];
  int n = targets(c, a, data, bars);
  for (int t = 0; t < n; t++) {
    k.smem = data[t]->smem;
    if (!walk(&k)) return;
    Bar* b = bar_at(a->warp, bars[t], (u32)a->c & 0xffffff, a->pc, a->lane);
    if (!b) return;
    if (b->phase != a->phase[data[t]->rank]) {
      Fault* f = fault(c, F_PHASE_BYTES, a->warp, a->pc, a->lane, a->c);
      if (f) {
        f->a = b->phase - b->base;
        f->b = a->phase[data[t]->rank] - b->base;
      }
    }
    if (races(c)) publish_async(c, a, b->acc), vc_join(b->cum, a->vc, c->dims);
    bar_tx(c, bars[t], b, -(i64)box_bytes(&m), a->warp, a->pc, a->lane);
  }
}
