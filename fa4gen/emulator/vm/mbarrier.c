/* mbarriers: arrival and byte counts, full phase numbers, and what a phase hands over. */
#include "vm.h"

#define NONE ((i32)0x80000000)
enum { REMOTE = 1, EXPECT = 2, RELAXED = 4, DROP = 8, NOCOMPLETE = 16, COMPLETE = 32, WIDE = 0x4000 };
enum { PARITY = 1, TEST = 2 };

Bar* bar_at(Warp* w, Cta* t, u32 offset, i32 pc, int lane) {
  u32 k = offset & 7 ? 0 : t->bar_at[offset >> 3];
  if (!k || !t->bars[k - 1].live) {
    Fault* f =
        fatal(t->cluster, offset & 7 ? F_MISALIGNED : F_BAR_UNINIT, w, pc, lane, (u64)t->rank << 24 | offset);
    if (f) f->a = 8;
    return NULL;
  }
  return &t->bars[k - 1];
}

static void complete(Cluster* c, Cta* t, Bar* b, const Warp* w, i32 pc, int lane) {
  if (b->pending || b->tx) return;
  u32 n = b->phase++;
  b->pending = b->expected;
  b->arrived_before = b->arrived;
  b->arrived = 0;
  if (races(c)) {
    for (int k = 0; k < c->nwarps && k < 64;
         k++) /* a wait for phase n - 2 that n does not come after may be overtaken */
      if (n >= b->base + 2 && b->wait_phase[n & 1][k] == n - 1 &&
          b->cum[k * C_PER_WARP + C_EXECUTED] < b->wait_clock[n & 1][k]) {
        Fault* f = fault(c, F_LAPPED, w, pc, lane, (u64)t->rank << 24 | b->address);
        if (f) {
          f->a = n - b->base;
          f->b = k;
        }
      }
    u32* swap = b->done;
    b->done = b->acc;
    b->acc = swap;
    memset(b->acc, 0, 4 * (size_t)c->dims);
    b->done[b->comp] = n + 1;
  }
  progressed(c);
  wake_bar(c, b);
}

void bar_arrive(Cluster* c, Cta* t, Bar* b, u32 count, const Warp* w, i32 pc, int lane) {
  if (count > b->pending) {
    Fault* f = fatal(c, F_OVER_ARRIVAL, w, pc, lane, (u64)t->rank << 24 | b->address);
    if (f) {
      f->a = count;
      f->b = b->pending;
      f->c = b->phase - b->base;
      f->d = b->expected;
    }
    return;
  }
  b->pending -= count;
  if (w) b->arrived |= 1ull << (w->id & 63);
  progressed(c);
  complete(c, t, b, w, pc, lane);
}

void bar_tx(Cluster* c, Cta* t, Bar* b, i64 bytes, const Warp* w, i32 pc, int lane) {
  b->tx += bytes;
  if (b->tx >= 1 << 20 || b->tx <= -(1 << 20)) {
    Fault* f = fatal(c, F_TX_RANGE, w, pc, lane, (u64)t->rank << 24 | b->address);
    if (f) f->a = b->tx;
    return;
  }
  progressed(c);
  complete(c, t, b, w, pc, lane);
}

static void init(Warp* w, u32 address, u32 count, i32 pc, int lane) {
  Cluster* c = w->cta->cluster;
  Cta* t;
  if (!shared_at(w, address, 8, 0, lane, pc, &t)) return;
  u32 offset = address & 0xffffff;
  if (offset & 7 || count == 0 || count >= 1 << 20) {
    Fault* f = fatal(c, F_ILLEGAL, w, pc, lane, address);
    if (f) f->a = count;
    return;
  }
  u32 k = t->bar_at[offset >> 3];
  if (!k) {
    if (t->nbars == MAX_BARS) {
      fatal(c, F_ILLEGAL, w, pc, lane, address);
      return;
    }
    k = t->bar_at[offset >> 3] = (u16)++t->nbars;
  }
  Bar* b = &t->bars[k - 1];
  int again = b->live && b->init_pc == pc && b->init_warp == w->id &&
              b->init_clock == w->clock[C_GENERIC]; /* by another lane of the same instruction */
  if (b->live && !again && races(c)) fault(c, F_BAR_REINIT, w, pc, lane, address);
  if (b->live) b->phase += 2; /* a new life: keep the numbers growing */
  b->base = b->phase;
  b->address = offset;
  b->live = 1;
  if (!t->bars_to || offset < t->bars_from) t->bars_from = offset;
  if (offset + 8 > t->bars_to) t->bars_to = offset + 8;
  b->expected = b->pending = count;
  b->tx = 0;
  b->init_pc = pc;
  b->init_warp = (u16)w->id;
  b->init_clock = w->clock[C_GENERIC];
  b->comp = (u16)(c->nwarps * C_PER_WARP + t->rank * MAX_BARS + (int)k - 1);
  memset(b->wait_phase, 0xff, sizeof b->wait_phase);
  if (races(c)) {
    if (!b->acc) {
      b->acc = calloc_vc(c);
      b->done = calloc_vc(c);
      b->cum = calloc_vc(c);
    }
    memset(b->acc, 0, 4 * (size_t)c->dims);
    memset(b->done, 0, 4 * (size_t)c->dims);
    Actor a = generic_actor(w, pc, lane);
    a.async = BY_BARRIER;
    race_smem(c, t, offset, 8, 1, &a);
  }
  progressed(c);
}

static u32 lane_address(const Warp* w, const Ins* i, int lane) {
  return (u32)((i->mods & WIDE ? lane64(w, i->o[1], lane) : lane32(w, i->o[1], lane)) + (u64)i->imm);
}

static void arrive(Warp* w, const Ins* i, u32 exec, i32 pc) {
  Cluster* c = w->cta->cluster;
  int remote = i->mods & REMOTE;
  if (races(c)) w->vc[comp_of(w, C_GENERIC)] = w->clock[C_GENERIC];
  Bar* last = NULL;
  u32 phase = 0;
  EACH (exec) {
    u32 address = lane_address(w, i, (int)l);
    Cta* t;
    if (!shared_at(w, address, 8, remote, (int)l, pc, &t)) return;
    Bar* b = bar_at(w, t, address & 0xffffff, pc, (int)l);
    if (!b) return;
    if (b == last &&
        b->phase != phase) { /* the count is not that of the arrivers: this lane falls into the next phase */
      Fault* f = fault(c, F_OVER_ARRIVAL, w, pc, (int)l, (u64)t->rank << 24 | b->address);
      if (f) {
        f->a = __builtin_popcount(exec);
        f->b = __builtin_popcount(exec & ((1u << l) - 1));
        f->c = phase - b->base;
        f->d = b->expected;
      }
    }
    last = b;
    phase = b->phase;
    race_bar_use(w, t, b, t != w->cta, pc, (int)l);
    u32 value = i->o[2] == NONE ? 1 : lane32(w, i->o[2], (int)l);
    if (i->o[0] != NONE) r64(w, i->o[0])[l] = (u64)b->phase << 20 | b->pending;
    if (races(c)) {
      publish(w, b->acc, i->mods & RELAXED);
      vc_join(b->cum, w->vc, c->dims);
    }
    if (i->mods & EXPECT) {
      b->tx += value;
      if (b->tx >= 1 << 20) {
        Fault* f = fatal(c, F_TX_RANGE, w, pc, (int)l, address);
        if (f) f->a = b->tx;
        return;
      }
      value = 1;
    }
    if (i->mods & DROP) b->expected -= value;
    if (i->mods & NOCOMPLETE && value >= b->pending) {
      fatal(c, F_ILLEGAL, w, pc, (int)l, address);
      return;
    }
    bar_arrive(c, t, b, value, w, pc, (int)l);
    if (c->fatal) return;
  }
  if (races(c)) warp_release(w);
}

static void transactions(Warp* w, const Ins* i, u32 exec, i32 pc) {
  Cluster* c = w->cta->cluster;
  EACH (exec) {
    u32 address = lane_address(w, i, (int)l);
    Cta* t;
    if (!shared_at(w, address, 8, i->mods & REMOTE, (int)l, pc, &t)) return;
    Bar* b = bar_at(w, t, address & 0xffffff, pc, (int)l);
    if (!b) return;
    race_bar_use(w, t, b, t != w->cta, pc, (int)l);
    i64 bytes = lane32(w, i->o[2], (int)l);
    bar_tx(c, t, b, i->mods & COMPLETE ? -bytes : bytes, w, pc, (int)l);
  }
}

static int passed(const Ins* i, const Bar* b, u64 value) {
  if (i->mods2 & PARITY) return ((b->phase - b->base) & 1) != (value & 1);
  return b->phase != (u32)(value >> 20);
}

/* A parity means the first phase of that parity that the warp does not yet know to be complete, or the last
 * that it does. If the barrier is beyond that one, the wait has passed on a later phase by luck, and could
 * hang in between. */
static void overtaken(Warp* w, const Ins* i, const Bar* b, u32 parity, i32 pc, int lane) {
  u32 known = w->vc[b->comp] > b->base ? w->vc[b->comp] - b->base : 0, completed = b->phase - b->base;
  u32 meant = (known & 1) == (parity & 1) ? known + 1 : known; /* phases complete when it should pass */
  if (!(i->mods2 & PARITY) || completed <= meant) return;
  Fault* f = fault(w->cta->cluster, F_LAPPED, w, pc, lane, (u64)w->cta->rank << 24 | b->address);
  if (f) {
    f->a = (i64)completed - 1;
    f->b = (i64)meant - 1;
    f->c = 2;
  }
}

static void observed(Warp* w, const Ins* i, Bar* b, u32 parity, i32 pc,
                     int lane) { /* what a successful wait teaches */
  Cluster* c = w->cta->cluster;
  if (!races(c)) return;
  overtaken(w, i, b, parity, pc, lane);
  if (b->phase == b->base) return;
  acquire(w, b->done);
  if (w->id < 64) {
    b->wait_phase[(b->phase - 1) & 1][w->id] = b->phase;
    b->wait_clock[(b->phase - 1) & 1][w->id] = w->vc[comp_of(w, C_EXECUTED)] = ++w->clock[C_EXECUTED];
  }
}

/* 0: the lanes must wait here */
static int wait(Warp* w, const Ins* i, u32 exec, i32 pc) {
  Cluster* c = w->cta->cluster;
  u32 yes = 0;
  Bar* first = NULL;
  u64 want = 0;
  EACH (exec) {
    u32 address = lane_address(w, i, (int)l);
    u64 value = i->mods2 & PARITY ? lane32(w, i->o[2], (int)l) : lane64(w, i->o[2], (int)l);
    Bar* b = first;
    if (!first || (address & 0xffffff) != first->address || value != want) {
      Cta* t;
      if (!shared_at(w, address, 8, 0, (int)l, pc, &t)) return 1;
      b = bar_at(w, t, address & 0xffffff, pc, (int)l);
      if (!b) return 1;
      race_bar_use(w, t, b, 0, pc, (int)l);
      if (!first) {
        first = b;
        want = value;
      }
      if (passed(i, b, value)) observed(w, i, b, (u32)value, pc, (int)l);
    }
    if (passed(i, b, value)) yes |= 1u << l;
  }
  if (first && !(yes & exec) && !(i->mods2 & TEST)) {
    if (w->bar == first && w->want == (u32)want && first->phase - w->seen >= 2) {
      Fault* f = fault(c, F_LAPPED, w, pc, -1, (u64)w->cta->rank << 24 | first->address);
      if (f) {
        f->a = first->phase - first->base - 1;
        f->b = w->id;
        f->c = 1;
      }
    }
    if (!w->timed_out && rnd(c) % 16) {
      if (w->bar != first || w->want != (u32)want) w->seen = first->phase;
      w->bar = first;
      w->want = (u32)want;
      return 0;
    }
  }
  w->timed_out = 0;
  w->bar = NULL;
  u32* p = r32(w, i->o[0]);
  *p = (*p & ~exec) | yes;
  return 1;
}

int mbarrier(Warp* w, const Ins* i, u32 exec) {
  i32 pc = (i32)(i - w->cta->cluster->program->ins);
  switch (i->op) {
    case OP_MBAR_INIT:
      EACH (exec) init(w, lane_address(w, i, (int)l), lane32(w, i->o[2], (int)l), pc, (int)l);
      return 1;
    case OP_MBAR_INVAL:
      EACH (exec) {
        u32 a = lane_address(w, i, (int)l) & 0xffffff;
        Bar* b = bar_at(w, w->cta, a, pc, (int)l);
        if (b) {
          b->live = 0;
          b->phase += 2;
        }
      }
      return 1;
    case OP_MBAR_ARRIVE: arrive(w, i, exec, pc); return 1;
    case OP_MBAR_TX: transactions(w, i, exec, pc); return 1;
    case OP_MBAR_PENDING:
      EACH (exec) r32(w, i->o[0])[l] = (u32)(lane64(w, i->o[1], (int)l) & 0xfffff);
      return 1;
    default: return wait(w, i, exec, pc);
  }
}
