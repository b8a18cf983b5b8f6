/* Operations across the lanes of a warp, address conversion, and the small matrix loads and stores. */
#include "vm.h"

#define NONE ((i32)0x80000000)

/* o[0] d, o[1] a, o[2] b, o[3] c, o[4] predicate; mods: 0 up 1 down 2 bfly 3 idx */
static void shuffle(Warp* w, const Ins* i, u32 exec) {
  u32 a[32], out[32], ok = 0;
  memcpy(a, ref(w, i->o[1]), 128);
  const u32 *b = r32(w, i->o[2]), *cc = r32(w, i->o[3]);
  EACH (exec) {
    u32 clamp = cc[l] & 31, seg = cc[l] >> 8 & 31, top = (l & seg) | (clamp & ~seg), low = l & seg,
        by = b[l] & 31;
    int j, good;
    switch (i->mods) {
      case 0:
        j = (int)l - (int)by;
        good = j >= (int)top;
        break;
      case 1:
        j = (int)(l + by);
        good = j <= (int)top;
        break;
      case 2:
        j = (int)(l ^ by);
        good = j <= (int)top;
        break;
      default: j = (int)(low | (by & ~seg)); good = j <= (int)top;
    }
    if (good && !(exec >> j & 1))
      good = 1; /* the value of a lane that does not take part is unspecified: its register */
    out[l] = good ? a[j & 31] : a[l];
    ok |= (u32)good << l;
  }
  if (i->o[0] != NONE) {
    u32* d = r32(w, i->o[0]);
    EACH (exec) d[l] = out[l];
  }
  if (i->o[4] != NONE) {
    u32* p = r32(w, i->o[4]);
    *p = (*p & ~exec) | (ok & exec);
  }
}

static void vote(Warp* w, const Ins* i,
                 u32 exec) { /* mods: 0 ballot 1 all 2 any 3 uni; mods2: negated source */
  u32 p = *r32(w, i->o[1]);
  p = (i->mods2 ? ~p : p) & exec;
  if (i->mods == 0) {
    u32* d = r32(w, i->o[0]);
    EACH (exec) d[l] = p;
    return;
  }
  int yes = i->mods == 1 ? p == exec : i->mods == 2 ? p != 0 : p == exec || p == 0;
  u32* d = r32(w, i->o[0]);
  *d = yes ? *d | exec : *d & ~exec;
}

static void reduce(Warp* w, const Ins* i,
                   u32 exec) { /* mods: op | signed << 8 | float << 9 (abs << 10, nan << 11) */
  const u32* a = r32(w, i->o[1]);
  u32 r = 0;
  int first = 1;
  EACH (exec) {
    u32 v = a[l];
    if (first) {
      r = i->mods & 1024 ? v & 0x7fffffff : v;
      first = 0;
      continue;
    }
    if (i->mods & 512) {
      float x, y;
      memcpy(&x, &r, 4);
      if (i->mods & 1024) v &= 0x7fffffff;
      memcpy(&y, &v, 4);
      int nan = i->mods & 2048;
      if (x != x || y != y) r = nan || (x != x && y != y) ? 0x7fffffff : x != x ? v : r;
      else r = (i->mods & 255) == 1 ? (y < x ? v : r) : (y > x ? v : r);
      continue;
    }
    int s = i->mods >> 8 & 1;
    switch (i->mods & 255) {
      case 0: r += v; break;
      case 1: r = s ? ((i32)v < (i32)r ? v : r) : v < r ? v : r; break;
      case 2: r = s ? ((i32)v > (i32)r ? v : r) : v > r ? v : r; break;
      case 3: r &= v; break;
      case 4: r |= v; break;
      default: r ^= v;
    }
  }
  u32* d = r32(w, i->o[0]);
  EACH (exec) d[l] = r;
}

static void match(Warp* w, const Ins* i, u32 exec) { /* mods: 0 any 1 all; mods2: 64-bit */
  u32 out[32], all = 1;
  EACH (exec) {
    u64 v = i->mods2 ? lane64(w, i->o[1], (int)l) : lane32(w, i->o[1], (int)l);
    out[l] = 0;
    for (int k = 0; k < 32; k++)
      if (exec >> k & 1 && (i->mods2 ? lane64(w, i->o[1], k) : lane32(w, i->o[1], k)) == v) out[l] |= 1u << k;
    all &= out[l] == exec;
  }
  if (i->o[0] != NONE) {
    u32* d = r32(w, i->o[0]);
    EACH (exec) d[l] = i->mods ? (all ? exec : 0) : out[l];
  }
  if (i->o[4] != NONE) {
    u32* p = r32(w, i->o[4]);
    *p = all ? *p | exec : *p & ~exec;
  }
}

static void addresses(Warp* w, const Ins* i, u32 exec) {
  switch (i->op) {
    case OP_MAPA:
      EACH (exec) {
        u64 a = i->mods & 1 ? lane64(w, i->o[1], (int)l) : lane32(w, i->o[1], (int)l);
        u32 rank = lane32(w, i->o[2], (int)l);
        if ((int)rank >= w->cta->cluster->nctas) {
          fatal(w->cta->cluster, F_BOUNDS, w, w->pc, (int)l, (u64)rank << 24);
          return;
        }
        u64 d = (a & 0x00ffffff) | (u64)rank << 24 | (a & ~0xffffffffull);
        if (i->flags == DEST_64) r64(w, i->o[0])[l] = d;
        else r32(w, i->o[0])[l] = (u32)d;
      }
      break;
    case OP_CVTA_SHARED:
      EACH (exec)
        r64(w, i->o[0])[l] =
            SHARED_WINDOW + (i->mods & 1 ? lane64(w, i->o[1], (int)l) : lane32(w, i->o[1], (int)l));
      break;
    case OP_CVTA_TO_SHARED:
      EACH (exec) {
        u64 v = lane64(w, i->o[1], (int)l) - SHARED_WINDOW;
        if (i->flags == DEST_64) r64(w, i->o[0])[l] = v;
        else r32(w, i->o[0])[l] = (u32)v;
      }
      break;
    case OP_CVTA_PARAM:
      EACH (exec) r64(w, i->o[0])[l] = PARAM_WINDOW + lane64(w, i->o[1], (int)l);
      break;
    case OP_CVTA_TO_PARAM:
      EACH (exec) r64(w, i->o[0])[l] = lane64(w, i->o[1], (int)l) - PARAM_WINDOW;
      break;
    case OP_ISSPACEP: {
      u32 m = 0;
      EACH (exec) {
        u64 v = lane64(w, i->o[1], (int)l);
        int space = v >= SHARED_WINDOW ? 1 : v >= PARAM_WINDOW ? 2 : 0;
        m |= (u32)(space == (int)i->mods) << l;
      }
      u32* p = r32(w, i->o[0]);
      *p = (*p & ~exec) | m;
      break;
    }
  }
}

void warp_operation(Warp* w, const Ins* i, u32 exec) {
  switch (i->op) {
    case OP_SHFL: shuffle(w, i, exec); break;
    case OP_VOTE: vote(w, i, exec); break;
    case OP_REDUX: reduce(w, i, exec); break;
    case OP_MATCH: match(w, i, exec); break;
    case OP_ELECT: { /* the lowest lane of those that execute (measured: lane 0 of a full mask) */
      u32 leader = (u32)__builtin_ctz(exec), *p = r32(w, i->o[4]);
      *p = (*p & ~exec) | 1u << leader;
      if (i->o[0] != NONE) {
        u32* d = r32(w, i->o[0]);
        EACH (exec) d[l] = leader;
      }
      break;
    }
    case OP_ACTIVEMASK: {
      u32* d = r32(w, i->o[0]);
      EACH (exec) d[l] = exec;
      break;
    }
    default: addresses(w, i, exec);
  }
}

/* ldmatrix, stmatrix: o[1] address, imm; ext: n registers; mods: 1 transposed, 0x4000 generic address */
void matrix_operation(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  i32 pc = (i32)(i - c->program->ins);
  const i32* regs = c->program->ext + i->ext;
  int trans = i->mods & 1, write = i->op == OP_STMATRIX;
  if (exec != FULL) {
    fatal(c, F_DIVERGED, w, pc, -1, exec);
    return;
  }
  for (int j = 0; j < i->n; j++) {
    u8* rows[8];
    for (int r = 0; r < 8; r++) {
      int lane = 8 * j + r;
      u32 address =
          (u32)(i->mods & 0x4000 ? lane64(w, i->o[1], lane) : lane32(w, i->o[1], lane)) + (u32)i->imm;
      Cta* t;
      if (address & 15) {
        Fault* f = fatal(c, F_MISALIGNED, w, pc, lane, address);
        if (f) f->a = 16;
        return;
      }
      rows[r] = shared_at(w, address, 16, 0, lane, pc, &t);
      if (!rows[r]) return;
      if (races(c)) {
        Actor a = generic_actor(w, pc, lane);
        race_smem(c, t, address & 0xffffff, 16, write, &a);
      }
    }
    u32* v = r32(w, regs[j]);
    LANES {
      u16 lo, hi;
      u8 *p = trans ? rows[2 * (l % 4)] + 2 * (l / 4) : rows[l / 4] + 4 * (l % 4),
         *q = trans ? rows[2 * (l % 4) + 1] + 2 * (l / 4) : p + 2;
      if (write) {
        lo = (u16)v[l];
        hi = (u16)(v[l] >> 16);
        memcpy(p, &lo, 2);
        memcpy(q, &hi, 2);
      } else {
        memcpy(&lo, p, 2);
        memcpy(&hi, q, 2);
        v[l] = lo | (u32)hi << 16;
      }
    }
  }
  if (write) progressed(c);
}
