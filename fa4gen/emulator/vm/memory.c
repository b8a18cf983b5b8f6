/* Loads, stores and atomics; address spaces; which global bytes are legal. */
#include <pthread.h>
#include "vm.h"

#define NONE ((i32)0x80000000)
enum { S_GLOBAL, S_SHARED, S_GENERIC, S_PARAM, S_CLUSTER };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
void global_lock(void) { pthread_mutex_lock(&lock); }
void global_unlock(void) { pthread_mutex_unlock(&lock); }

u8* shared_at(Warp* w, u32 address, u32 bytes, int remote, int lane, i32 pc, Cta** owner) {
  Cluster* c = w->cta->cluster;
  u32 rank = address >> 24, offset = address & 0xffffff;
  if ((int)rank >= c->nctas || (!remote && (int)rank != w->cta->rank)) {
    Fault* f = fatal(c, F_BOUNDS, w, pc, lane, address);
    if (f) f->a = bytes;
    return NULL;
  }
  Cta* t = &c->ctas[rank];
  if (offset < SHARED_BASE || offset + bytes > (u32)t->smem_bytes) {
    Fault* f = fatal(c, F_BOUNDS, w, pc, lane, address);
    if (f) {
      f->a = bytes;
      f->b = t->smem_bytes;
    }
    return NULL;
  }
  if (t != w->cta && t->live_warps == 0) {
    Fault* f = fault(c, F_CLUSTER_EXITED, w, pc, lane, address);
    if (f) f->a = rank;
  }
  if (t != w->cta && !w->cta->met &&
      races(c)) { /* nobody of this CTA has passed a cluster barrier: the other may not run yet */
    Fault* f = fault(c, F_CLUSTER_EXITED, w, pc, lane, address);
    if (f) {
      f->a = rank;
      f->b = 1;
    }
  }
  if (owner) *owner = t;
  return t->smem + offset;
}

static __thread int last_range;
static Range* range_of(Launch* L, u64 address, u32 bytes) {
  Range* r = &L->ranges[last_range < L->nranges ? last_range : 0];
  if (address >= r->address && address + bytes <= r->address + r->bytes) return r;
  for (int k = 0; k < L->nranges; k++) {
    r = &L->ranges[k];
    if (address >= r->address && address + bytes <= r->address + r->bytes) {
      last_range = k;
      return r;
    }
  }
  return NULL;
}

/* write: 0 read, 1 plain write, 2 atomic, 3 plain write of what is there already: harmless whoever wrote it
 */
void global_touch(Cluster* c, const Warp* w, u64 address, u32 bytes, int write, i32 pc, int lane) {
  Range* r = range_of(c->launch, address, bytes);
  if (!r || !r->shadow) return;
  u32 mine = (u32)w->cta->linear + 1;
  for (u64 k = (address - r->address) / 4; k <= (address + bytes - 1 - r->address) / 4; k++) {
    if (!write) {
      if (!r->initialised && !__atomic_load_n(&r->shadow[k], __ATOMIC_RELAXED)) {
        fault(c, F_UNINIT_GLOBAL, w, pc, lane, r->address + 4 * k);
        return;
      }
      continue;
    }
    u32 mark = write == 2 ? 0x80000000u : mine,
        old = __atomic_exchange_n(&r->shadow[k], mark, __ATOMIC_RELAXED);
    if (write != 3 && old && old != mark && bytes >= 4) {
      Fault* f = fault(c, F_GLOBAL_RACE, w, pc, lane, r->address + 4 * k);
      if (f) f->other_cta = old == 0x80000000u ? -1 : (i32)old - 1;
      return;
    }
  }
}

u8* global_at(Cluster* c, const Warp* w, u64 address, u32 bytes, int lane, i32 pc, int write) {
  if (c->launch->nranges) {
    if (!range_of(c->launch, address, bytes)) {
      Fault* f = fatal(c, F_BOUNDS, w, pc, lane, address);
      if (f) {
        f->a = bytes;
        f->c = 1;
      }
      return NULL;
    }
    if (races(c) && write != 3) global_touch(c, w, address, bytes, write, pc, lane);
  }
  return (u8*)address;
}

const u8* map_at(Warp* w, u64 address, i32 pc, int lane) {
  Cluster* c = w->cta->cluster;
  if (address >= PARAM_WINDOW && address + 64 <= PARAM_WINDOW + (u64)c->program->param_bytes)
    return c->program->params + (address - PARAM_WINDOW);
  if (address & 63) {
    fatal(c, F_MISALIGNED, w, pc, lane, address);
    return NULL;
  }
  return global_at(c, w, address, 64, lane, pc, 0);
}

static u8* resolve(Warp* w, u64 address, u32 bytes, int space, int lane, i32 pc, int write, Cta** owner) {
  Cluster* c = w->cta->cluster;
  *owner = NULL;
  if (space == S_PARAM ||
      (space == S_GENERIC && address >= PARAM_WINDOW && address < PARAM_WINDOW + (1u << 16))) {
    u64 at = address >= PARAM_WINDOW ? address - PARAM_WINDOW : address;
    if (write || at + bytes > (u64)c->program->param_bytes) {
      fatal(c, F_BOUNDS, w, pc, lane, address);
      return NULL;
    }
    return (u8*)c->program->params + at;
  }
  if (address % bytes) {
    Fault* f = fatal(c, F_MISALIGNED, w, pc, lane, address);
    if (f) f->a = bytes;
    return NULL;
  }
  if (space == S_SHARED || space == S_CLUSTER)
    return shared_at(w, (u32)address, bytes, space == S_CLUSTER, lane, pc, owner);
  if (space == S_GENERIC && address >= SHARED_WINDOW && address < SHARED_WINDOW + (1ull << 32))
    return shared_at(w, (u32)address, bytes, 1, lane, pc, owner);
  return global_at(c, w, address, bytes, lane, pc, write);
}

static inline u64 address_of(const Warp* w, const Ins* i, i32 o, int lane) {
  if (o == NONE) return (u64)i->imm;
  return (i->mods & 0x4000 ? lane64(w, o, lane) : (u64)lane32(w, o, lane)) + (u64)i->imm;
}

static u64 widen(const u8* p, u32 bytes, int sign) {
  switch (bytes) {
    case 1: return sign ? (u64)(i64)(i8)*p : *p;
    case 2: {
      u16 v;
      memcpy(&v, p, 2);
      return sign ? (u64)(i64)(i16)v : v;
    }
    case 4: {
      u32 v;
      memcpy(&v, p, 4);
      return sign ? (u64)(i64)(i32)v : v;
    }
    default: {
      u64 v;
      memcpy(&v, p, 8);
      return v;
    }
  }
}

static void touched(Warp* w, Cta* owner, const u8* p, u32 bytes, int write, i32 pc, int lane) {
  Actor a = generic_actor(w, pc, lane);
  race_smem(w->cta->cluster, owner, (u32)(p - owner->smem), bytes, write, &a);
}

void load(Warp* w, const Ins* i, u32 exec) {
  i32 pc = (i32)(i - w->cta->cluster->program->ins);
  int space = i->mods & 15, sign = i->mods >> 12 & 1, wide = i->mods >> 13 & 1;
  u32 bytes = i->mods >> 4 & 15, total = bytes * (u32)i->n;
  const i32* dst = w->cta->cluster->program->ext + i->ext;
  EACH (exec) {
    Cta* owner;
    u8* p = resolve(w, address_of(w, i, i->o[1], (int)l), total, space, (int)l, pc, 0, &owner);
    if (!p) return;
    if (owner && races(w->cta->cluster)) touched(w, owner, p, total, 0, pc, (int)l);
    for (int k = 0; k < i->n; k++) {
      if (dst[k] == NONE) continue;
      u64 v = widen(p + bytes * (u32)k, bytes, sign);
      if (wide) r64(w, dst[k])[l] = v;
      else r32(w, dst[k])[l] = (u32)v;
    }
  }
}

void store(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  i32 pc = (i32)(i - c->program->ins);
  int space = i->mods & 15;
  u32 bytes = i->mods >> 4 & 15, total = bytes * (u32)i->n;
  const i32* src = c->program->ext + i->ext;
  EACH (exec) {
    Cta* owner;
    u64 address = address_of(w, i, i->o[1], (int)l);
    u8* p = resolve(w, address, total, space, (int)l, pc, 3, &owner);
    if (!p) return;
    if (owner && races(c)) touched(w, owner, p, total, 1, pc, (int)l);
    int same = 1;
    for (int k = 0; k < i->n; k++) {
      const void* v = bytes == 8 ? (void*)&r64(w, src[k])[l] : (void*)&r32(w, src[k])[l];
      same &= !memcmp(p + bytes * (u32)k, v, bytes);
      memcpy(p + bytes * (u32)k, v, bytes);
    }
    if (!same) progressed(c); /* a loop that writes the same again and again gets nowhere */
    if (!owner && races(c)) global_touch(c, w, address, total, same ? 3 : 1, pc, (int)l);
  }
}

/* mods2: operation | type << 8. operations: add min max and or xor exch cas inc dec; types: u32 s32 u64 s64
 * f32 f64 f16x2 bf16x2 */
u64 atomic_combine(u32 op, u32 type, u64 old, u64 v, u64 cas) {
  float a, b, f;
  double x, y;
  u32 lo;
  u64 o;
  switch (op) {
    case 6: return v;
    case 7: return old == v ? cas : old;
    case 3: return old & v;
    case 4: return old | v;
    case 5: return old ^ v;
    case 8: return (u32)old >= (u32)v ? 0 : (u32)old + 1;
    case 9: return (u32)old == 0 || (u32)old > (u32)v ? (u32)v : (u32)old - 1;
  }
  switch (type) {
    case 4:
      lo = (u32)old;
      memcpy(&a, &lo, 4);
      lo = (u32)v;
      memcpy(&b, &lo, 4);
      f = op == 0 ? a + b : op == 1 ? (b < a ? b : a) : (b > a ? b : a);
      memcpy(&lo, &f, 4);
      return op == 0 && !(lo & 0x7f800000u) ? lo & 0x80000000u : lo;
    case 5:
      memcpy(&x, &old, 8);
      memcpy(&y, &v, 8);
      x += y;
      memcpy(&o, &x, 8);
      return o;
    case 6:
      return float_to_half(half_to_float((u32)old & 0xffff) + half_to_float((u32)v & 0xffff)) |
             (u64)float_to_half(half_to_float((u32)old >> 16) + half_to_float((u32)v >> 16)) << 16;
    case 7:
      return float_to_bf16(bf16_to_float((u32)old & 0xffff) + bf16_to_float((u32)v & 0xffff)) |
             (u64)float_to_bf16(bf16_to_float((u32)old >> 16) + bf16_to_float((u32)v >> 16)) << 16;
    case 1: {
      i32 p = (i32)old, q = (i32)v;
      return (u32)(op == 0 ? (i32)((u32)p + (u32)q) : op == 1 ? (q < p ? q : p) : (q > p ? q : p));
    }
    case 3: {
      i64 p = (i64)old, q = (i64)v;
      return (u64)(op == 0 ? (i64)(old + v) : op == 1 ? (q < p ? q : p) : (q > p ? q : p));
    }
    case 0: {
      u32 p = (u32)old, q = (u32)v;
      return op == 0 ? p + q : op == 1 ? (q < p ? q : p) : (q > p ? q : p);
    }
    default: return op == 0 ? old + v : op == 1 ? (v < old ? v : old) : (v > old ? v : old);
  }
}

void atomic(Warp* w, const Ins* i,
            u32 exec) { /* o[0] destination or NONE, o[1] address, o[3] compare-and-swap value; ext: values */
  Cluster* c = w->cta->cluster;
  i32 pc = (i32)(i - c->program->ins);
  u32 op = i->mods2 & 255, type = i->mods2 >> 8, bytes = i->mods >> 4 & 15;
  const i32* src = c->program->ext + i->ext;
  EACH (exec) {
    Cta* owner;
    u8* p =
        resolve(w, address_of(w, i, i->o[1], (int)l), bytes * (u32)i->n, i->mods & 15, (int)l, pc, 2, &owner);
    if (!p) return;
    if (owner && races(c)) touched(w, owner, p, bytes, 2, pc, (int)l);
    for (int k = 0; k < i->n; k++) {
      u64 v = bytes == 8 ? lane64(w, src[k], (int)l) : lane32(w, src[k], (int)l),
          cas = i->o[3] == NONE ? 0
                : bytes == 8    ? lane64(w, i->o[3], (int)l)
                                : lane32(w, i->o[3], (int)l);
      if (!owner) global_lock();
      u64 old = widen(p + bytes * (u32)k, bytes, 0), now = atomic_combine(op, type, old, v, cas);
      memcpy(p + bytes * (u32)k, &now, bytes);
      if (!owner) global_unlock();
      if (i->o[0] != NONE) {
        if (bytes == 8) r64(w, i->o[0])[l] = old;
        else r32(w, i->o[0])[l] = (u32)old;
      }
      if (now != old) progressed(c);
    }
  }
}
