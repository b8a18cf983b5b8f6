/* The Blackwell tensor core: mma, cp, shift and commit, executed in issue order per CTA (or CTA pair). */
#include <stdlib.h>
#include "vm.h"

#define NONE ((i32)0x80000000)
enum { GROUP2 = 1, A_TMEM = 2, SCALE_D = 4 };

typedef struct {
  int M, N, pair, format_a, format_b, elem, k, a_major, b_major, negate_a, negate_b, dtype;
} Shape;

static int refuse(Cluster* c, const Async* a, u64 value, int why) {
  Fault* f = fatal(c, F_DESCRIPTOR, a->warp, a->pc, a->lane, value);
  if (f) f->a = why;
  return 0;
}

/* kind: 0 f16, 1 tf32, 2 f8f6f4, 3 i8 */
static int shape_of(Cluster* c, const Async* a, u32 idesc, int kind, Shape* s) {
  s->pair = !!(a->mods & GROUP2);
  s->N = (int)(idesc >> 17 & 63) * 8;
  s->M = (int)(idesc >> 24 & 31) * 16;
  s->dtype = (int)(idesc >> 4 & 3);
  u32 ta = idesc >> 7 & 7, tb = idesc >> 10 & 7;
  s->negate_a = (int)(idesc >> 13 & 1);
  s->negate_b = (int)(idesc >> 14 & 1);
  s->a_major = (int)(idesc >> 15 & 1);
  s->b_major = (int)(idesc >> 16 & 1);
  if (idesc & 7 && kind != 3) return refuse(c, a, idesc, 10);
  switch (kind) {
    case 0:
      if (ta > 1 || tb > 1) return refuse(c, a, idesc, 11);
      s->format_a = ta ? FMT_BF16 : FMT_F16;
      s->format_b = tb ? FMT_BF16 : FMT_F16;
      s->elem = 2;
      break;
    case 1:
      if (ta != 2 || tb != 2) return refuse(c, a, idesc, 11);
      s->format_a = s->format_b = FMT_TF32;
      s->elem = 4;
      break;
    case 2:
      if (ta > 1 || tb > 1) return refuse(c, a, idesc, 11);
      s->format_a = ta ? FMT_E5M2 : FMT_E4M3;
      s->format_b = tb ? FMT_E5M2 : FMT_E4M3;
      s->elem = 1;
      break;
    default:
      if (ta > 1 || tb > 1) return refuse(c, a, idesc, 11);
      s->format_a = ta ? FMT_S8 : FMT_U8;
      s->format_b = tb ? FMT_S8 : FMT_U8;
      s->elem = 1;
  }
  s->k = 32 / s->elem;
  int legal_m = s->pair ? s->M == 128 || s->M == 256 : s->M == 64 || s->M == 128;
  int step = s->pair ? 16 : 8;
  if (!legal_m || s->N < step || s->N > 256 || s->N % step || (s->dtype == 1) == (kind == 3) || s->dtype == 3)
    return refuse(c, a, idesc, 12);
  if (s->M == 128 && !s->pair && s->N % 16) return refuse(c, a, idesc, 12);
  return 1;
}

static Cta* half(Cluster* c, const Async* a, const Shape* s, int r) {
  return s->pair ? &c->ctas[(a->cta->rank & ~1) | r] : a->cta;
}

/* lane and column of D for row m of one CTA's rows, first column of the run of n0 */
static u32 lane_of(const Shape* s, int m) {
  return s->M == 64 && !s->pair ? (u32)((m % 16) + 32 * (m / 16)) : (u32)m;
}

static void rows_race(Cluster* c, Cta* t, const Shape* s, u32 lane0, u32 column, u32 columns, int write,
                      const Actor* actor) {
  if (s->M == 64 && !s->pair)
    for (u32 q = 0; q < 4; q++) race_tmem(c, t, lane0 + 32 * q, 16, column, columns, write, actor);
  else race_tmem(c, t, 0, 128, column, columns, write, actor);
}

static Operand operand(Cluster* c, const Async* a, const Shape* s, int is_b, int r) {
  int rows = is_b ? (s->pair ? s->N / 2 : s->N) : s->pair ? s->M / 2 : s->M;
  Operand o = {half(c, a, s, r),
               is_b ? a->c : a->b,
               0,
               rows,
               32,
               is_b ? s->b_major : s->a_major,
               s->elem,
               is_b ? s->format_b : s->format_a,
               is_b ? s->negate_b : s->negate_a,
               0};
  return o;
}

static int check_mma(Cluster* c, Async* a, Shape* s) {
  u32 column = (u32)a->a & 0xffff, lane0 = (u32)a->a >> 16,
      columns = (u32)(s->pair && s->M == 128 ? s->N / 2 : s->N);
  if (lane0 && !(s->M == 64 && !s->pair && lane0 == 16)) return refuse(c, a, a->a, 13);
  Actor actor;
  tensor_actor(a->warp, C_PIPE, a->pc, a->lane, &actor);
  for (int r = 0; r <= s->pair; r++) {
    Cta* t = half(c, a, s, r);
    if (!tmem_check(c, t, a->warp, a->pc, a->lane, column, columns)) return 0;
    u32 a_columns = 8; /* 32 bytes of K */
    if (a->mods & A_TMEM && !tmem_check(c, t, a->warp, a->pc, a->lane, (u32)a->b & 0xffff, a_columns))
      return 0;
    u32 offsets[2048];
    Operand b = operand(c, a, s, 1, r), x = operand(c, a, s, 0, r);
    if (!operand_units(c, a->warp, a->pc, a->lane, &b, offsets)) return 0;
    if (!(a->mods & A_TMEM) && !operand_units(c, a->warp, a->pc, a->lane, &x, offsets)) return 0;
    if (!races(c)) continue;
    operand_race(c, a->warp, a->pc, a->lane, &b, 0, &actor);
    if (a->mods & A_TMEM) rows_race(c, t, s, (u32)a->b >> 16, (u32)a->b & 0xffff, a_columns, 0, &actor);
    else operand_race(c, a->warp, a->pc, a->lane, &x, 1, &actor);
    if (a->d >> 32 & 1) rows_race(c, t, s, lane0, column, columns, 0, &actor);
    rows_race(c, t, s, lane0, column, columns, 1, &actor);
  }
  return 1;
}

static void commit_issue(Warp* w, const Ins* i, Async* a) {
  Cluster* c = w->cta->cluster;
  a->b = lane32(w, i->o[1], a->lane) + (u32)i->imm;
  a->mask = i->o[2] == NONE ? 0 : lane32(w, i->o[2], a->lane) & 0xffff;
  if (i->o[2] != NONE && !mask_fits(w, a->mask, a->pc, a->lane)) return;
  a->clock = w->clock[C_PIPE];
  for (int k = 0; k < c->nctas; k++) {
    if (!(a->mask ? a->mask >> k & 1 : k == (int)(a->b >> 24))) continue;
    Bar* b = bar_at(w, &c->ctas[k], (u32)a->b & 0xffffff, a->pc, a->lane);
    if (!b) return;
    race_bar_use(w, &c->ctas[k], b, 1, a->pc, a->lane);
  }
}

static void copy_issue(Warp* w, const Ins* i,
                       Async* a) { /* o[1] tmem address, o[2] descriptor; mods2: shape */
  Cluster* c = w->cta->cluster;
  a->a = lane32(w, i->o[1], a->lane) + (u32)i->imm;
  a->c = lane64(w, i->o[2], a->lane);
  a->e = i->mods2;
  w->clock[C_PIPE]++;
  Actor actor;
  tensor_actor(w, C_PIPE, a->pc, a->lane, &actor);
  int rows = (i->mods2 & 15) < 2    ? 128
             : (i->mods2 & 15) == 4 ? 32
                                    : 64,
      bytes = (i->mods2 & 15) == 0 ? 32 : 16;
  for (int r = 0; r <= !!(a->mods & GROUP2); r++) {
    Cta* t = a->mods & GROUP2 ? &c->ctas[(a->cta->rank & ~1) | r] : a->cta;
    Operand o = {t, a->c, 0, rows, bytes, 0, 1, FMT_U8, 0, 0};
    if (!tmem_check(c, t, w, a->pc, a->lane, (u32)a->a & 0xffff, (u32)bytes / 4)) return;
    if (!races(c)) continue;
    operand_race(c, w, a->pc, a->lane, &o, 0, &actor);
    race_tmem(c, t, 0, 128, (u32)a->a & 0xffff, (u32)bytes / 4, 1, &actor);
  }
}

/* mma: o[1] d, o[2] a, o[3] b descriptor, o[4] instruction descriptor, o[5] enable-input-d, ext: lane mask;
 * imm, mods2: offsets of d and a; mods: flags, kind << 4, scale-input-d << 8 */
void tcgen05_issue(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  EACH (exec) {
    Async* a = async_new(w,
                         i->op == OP_TC_MMA      ? A_MMA
                         : i->op == OP_TC_COMMIT ? A_TC_COMMIT
                         : i->op == OP_TC_CP     ? A_TC_CP
                                                 : A_TC_SHIFT,
                         (int)l);
    a->mods = i->mods;
    if (a->mods & GROUP2 && (w->cta->rank | 1) >= c->nctas) {
      fatal(c, F_ILLEGAL, w, a->pc, (int)l, 0);
      return;
    }
    if (i->op == OP_TC_MMA) {
      a->a = lane32(w, i->o[1], (int)l) + (u32)i->imm;
      a->b = i->mods & A_TMEM ? lane32(w, i->o[2], (int)l) + i->mods2 : lane64(w, i->o[2], (int)l);
      a->c = lane64(w, i->o[3], (int)l);
      a->d = lane32(w, i->o[4], (int)l) | (u64)(*r32(w, i->o[5]) >> l & 1) << 32;
      for (int k = 0; k < i->n && k < 8; k++)
        a->lane_mask[k] = lane32(w, c->program->ext[i->ext + k], (int)l);
      Shape s;
      w->clock[C_PIPE]++;
      if (!shape_of(c, a, (u32)a->d, i->mods >> 4 & 15, &s) || !check_mma(c, a, &s)) return;
    } else if (i->op == OP_TC_COMMIT) commit_issue(w, i, a);
    else if (i->op == OP_TC_CP) copy_issue(w, i, a);
    else {
      a->a = lane32(w, i->o[1], (int)l) + (u32)i->imm;
      w->clock[C_PIPE]++;
    }
    if (c->fatal) return;
    async_issue(c, a, P_TENSOR);
  }
}

static void tmem_operand(const Cta* t, const Shape* s, u32 address, float* out, int rows) {
  for (int m = 0; m < rows; m++) {
    const u32* p =
        t->tmem + (lane_of(s, m) + (s->M == 64 ? address >> 16 : 0)) * TMEM_COLUMNS + (address & 0xffff);
    float* d = out + m * s->k;
    for (int k = 0; k < s->k; k++) {
      float v;
      u32 word;
      switch (s->format_a) {
        case FMT_BF16: v = bf16_to_float(p[k / 2] >> 16 * (k & 1) & 0xffff); break;
        case FMT_F16: v = half_to_float(p[k / 2] >> 16 * (k & 1) & 0xffff); break;
        case FMT_TF32:
          word = p[k] & ~0x1fffu;
          memcpy(&v, &word, 4);
          break;
        case FMT_E4M3: v = e4m3_to_float(p[k / 4] >> 8 * (k & 3) & 255); break;
        case FMT_E5M2: v = e5m2_to_float(p[k / 4] >> 8 * (k & 3) & 255); break;
        case FMT_U8: v = (float)(p[k / 4] >> 8 * (k & 3) & 255); break;
        default: v = (float)(i8)(p[k / 4] >> 8 * (k & 3) & 255);
      }
      d[k] = s->negate_a ? -v : v;
    }
  }
}

static void put(u32* cell, float v, int accumulate, float scale, int dtype) {
  float old;
  if (dtype == 1) {
    memcpy(&old, cell, 4);
    v = accumulate ? old * scale + v : v;
    memcpy(cell, &v, 4);
  } else if (dtype == 0) {
    old = half_to_float(*cell & 0xffff);
    *cell = float_to_half(accumulate ? old * scale + v : v);
  } else *cell = (u32)(i32)v + (accumulate ? *cell : 0);
}

static void mma(Cluster* c, Async* a) {
  static __thread float A[256 * 32], B[32 * 256], D[256 * 256];
  Shape s;
  if (!shape_of(c, a, (u32)a->d, a->mods >> 4 & 15, &s)) return;
  int rows = s.pair ? s.M / 2 : s.M, part = s.pair ? s.N / 2 : s.N, pitch = (s.N + 15) / 16 * 16;
  for (int r = 0; r <= s.pair; r++) {
    Operand b = operand(c, a, &s, 1, r), x = operand(c, a, &s, 0, r);
    if (!operand_gather(c, a->warp, a->pc, a->lane, &b, B + r * part, 1, pitch)) return;
    if (a->mods & A_TMEM) tmem_operand(half(c, a, &s, r), &s, (u32)a->b, A + r * rows * s.k, rows);
    else if (!operand_gather(c, a->warp, a->pc, a->lane, &x, A + r * rows * s.k, 0, s.k)) return;
  }
  multiply(D, A, B, s.M, pitch, s.k, pitch);
  int accumulate = (int)(a->d >> 32 & 1);
  float scale = 1;
  if (a->mods & SCALE_D) scale = 1.0f / (float)(1u << (a->mods >> 8 & 15));
  u32 column = (u32)a->a & 0xffff, lane0 = (u32)a->a >> 16;
  for (int m = 0; m < s.M; m++) {
    int r = m / rows, local = m % rows;
    Cta* t = half(c, a, &s, r);
    const u32* mask = a->lane_mask + 4 * r;
    for (int h = 0; h < (s.pair && s.M == 128 ? 2 : 1); h++) {
      u32 lane = s.pair && s.M == 128 ? (u32)(local + 64 * h) : lane_of(&s, local) + lane0;
      int n0 = s.pair && s.M == 128 ? h * s.N / 2 : 0, n = s.pair && s.M == 128 ? s.N / 2 : s.N;
      if (mask[lane >> 5] >> (lane & 31) & 1) continue;
      u32* d = t->tmem + lane * TMEM_COLUMNS + column;
      const float* v = D + m * pitch + n0;
      if (s.dtype == 1 && scale == 1) {
        float* f = (float*)d;
        if (accumulate)
          for (int k = 0; k < n; k++) f[k] += v[k];
        else memcpy(f, v, 4 * (size_t)n);
      } else
        for (int k = 0; k < n; k++) put(d + k, v[k], accumulate, scale, s.dtype);
    }
  }
}

/* shapes: 0 128x256b, 1 128x128b, 2 64x128b.warpx2::02_13, 3 64x128b.warpx2::01_23, 4 32x128b.warpx4 */
static void copy(Cluster* c, Async* a) {
  int shape = (int)a->e & 15, rows = shape < 2 ? 128 : shape == 4 ? 32 : 64, bytes = shape == 0 ? 32 : 16;
  for (int r = 0; r <= !!(a->mods & GROUP2); r++) {
    Cta* t = a->mods & GROUP2 ? &c->ctas[(a->cta->rank & ~1) | r] : a->cta;
    Operand o = {t, a->c, 0, rows, bytes, 0, 1, FMT_U8, 0, 0};
    u32 offsets[2048];
    if (!operand_units(c, a->warp, a->pc, a->lane, &o, offsets)) return;
    for (int m = 0; m < rows; m++) {
      int copies = shape < 2 ? 1 : shape == 4 ? 4 : 2;
      for (int k = 0; k < copies; k++) {
        int lane = shape < 2    ? m
                   : shape == 4 ? m + 32 * k
                   : shape == 2 ? m + 64 * k
                                : (m / 32) * 64 + m % 32 + 32 * k;
        for (int u = 0; u < bytes / 16; u++)
          memcpy(t->tmem + (u32)lane * TMEM_COLUMNS + ((u32)a->a & 0xffff) + 4 * u,
                 t->smem + offsets[m * (bytes / 16) + u], 16);
      }
    }
  }
}

static void shift(Cluster* c, Async* a) {
  for (int r = 0; r <= !!(a->mods & GROUP2); r++) {
    Cta* t = a->mods & GROUP2 ? &c->ctas[(a->cta->rank & ~1) | r] : a->cta;
    u32 column = (u32)a->a & 0xffff, lane0 = (u32)a->a >> 16;
    for (u32 lane = lane0; lane < 127; lane++)
      memcpy(t->tmem + lane * TMEM_COLUMNS + column, t->tmem + (lane + 1) * TMEM_COLUMNS + column, 32);
  }
}

void tcgen05_complete(Cluster* c, Async* a) {
  if (a->kind == A_MMA) {
    mma(c, a);
    return;
  }
  if (a->kind == A_TC_CP) {
    copy(c, a);
    return;
  }
  if (a->kind == A_TC_SHIFT) {
    shift(c, a);
    return;
  }
  for (int k = 0; k < c->nctas; k++) {
    if (!(a->mask ? a->mask >> k & 1 : k == (int)(a->b >> 24))) continue;
    Cta* t = &c->ctas[k];
    Bar* b = bar_at(a->warp, t, (u32)a->b & 0xffffff, a->pc, a->lane);
    if (!b) return;
    if (races(c)) {
      publish_async(c, a, b->acc);
      u32 comp = (u32)comp_of(a->warp, C_PIPE);
      if (b->acc[comp] < a->clock) b->acc[comp] = a->clock;
      vc_join(b->acc, a->cta->pipe_known, c->dims);
      vc_join(b->cum, a->vc, c->dims);
    }
    bar_arrive(c, t, b, 1, a->warp, a->pc, a->lane);
    if (races(c)) a->cta->pipe_known[b->comp] = b->phase; /* later commits come after this one */
    if (c->fatal) return;
  }
}
