/* Tensor memory: allocation, and the warps' loads and stores. 128 lanes x 512 columns of 32 bits a CTA. */
#include <stdlib.h>
#include "vm.h"

#define NONE ((i32)0x80000000)
enum { GROUP2 = 1 };

static int find_columns(const Cta* t, int n) {
  for (int base = 0; base + n <= TMEM_COLUMNS; base += n) {
    int free = 1;
    for (int k = base; k < base + n; k++) free &= !t->column_owner[k];
    if (free) return base;
  }
  return -1;
}

static void take(Cta* t, Warp* w, u32 address, int base, int n, i32 pc) {
  memset(t->column_owner + base, 1, (size_t)n);
  t->held += n;
  t->last_alloc = n;
  Cta* owner;
  u8* p = shared_at(w, address, 4, 0, 0, pc, &owner);
  if (!p) return;
  u32 v = (u32)base;
  memcpy(p, &v, 4);
  if (races(t->cluster)) {
    Actor a = generic_actor(w, pc, 0);
    race_smem(t->cluster, t, address & 0xffffff, 4, 1, &a);
  }
  progressed(t->cluster);
}

static int bad_columns(u32 n) { return n < 32 || n > 512 || n & (n - 1); }

static int alloc(Warp* w, const Ins* i, u32 exec, i32 pc) {
  Cta* t = w->cta;
  Cluster* c = t->cluster;
  int lane = __builtin_ctz(exec);
  u32 n = lane32(w, i->o[2], lane), address = lane32(w, i->o[1], lane) + (u32)i->imm;
  if (t->alloc_done) {
    t->alloc_done = 0;
    return 1;
  } /* the other half of the pair allocated for both */
  if (bad_columns(n) || t->relinquished) {
    Fault* f = fatal(c, F_TMEM_ALLOC, w, pc, lane, n);
    if (f) f->a = t->relinquished ? 1 : 2;
    return 1;
  }
  t->alloc_group = i->mods & GROUP2 ? 2 : 1;
  if (!(i->mods & GROUP2)) {
    int base = find_columns(t, (int)n);
    if (base < 0) return 0;
    take(t, w, address, base, (int)n, pc);
    return 1;
  }
  if ((t->rank ^ 1) >= c->nctas) {
    fatal(c, F_ILLEGAL, w, pc, lane, n);
    return 1;
  }
  Cta* peer = &c->ctas[t->rank ^ 1];
  if (!peer->alloc_request) {
    t->alloc_request = n;
    t->alloc_address = address;
    t->alloc_warp = w->index;
    t->alloc_pc = pc;
    return 0;
  }
  if (peer->alloc_request != n) {
    fatal(c, F_TMEM_ALLOC, w, pc, lane, n);
    return 1;
  }
  int base = find_columns(t, (int)n);
  if (base < 0 || base != find_columns(peer, (int)n)) return 0;
  take(t, w, address, base, (int)n, pc);
  take(peer, &peer->warps[peer->alloc_warp], peer->alloc_address, base, (int)n, peer->alloc_pc);
  peer->alloc_request = t->alloc_request = 0;
  peer->alloc_done = 1;
  return 1;
}

/* 0: blocked */
int tmem_manage(Warp* w, const Ins* i, u32 exec) {
  Cta* t = w->cta;
  Cluster* c = t->cluster;
  i32 pc = (i32)(i - c->program->ins);
  int lane = __builtin_ctz(exec);
  if (i->op == OP_TC_RELINQUISH) {
    t->relinquished = 1;
    return 1;
  }
  if (i->op == OP_TC_ALLOC) return alloc(w, i, exec, pc);
  u32 base = lane32(w, i->o[1], lane) & 0xffff, n = lane32(w, i->o[2], lane);
  int held = !bad_columns(n) && base + n <= TMEM_COLUMNS;
  for (u32 k = base; held && k < base + n; k++) held = t->column_owner[k];
  if (!held) {
    Fault* f = fatal(c, F_TMEM_ALLOC, w, pc, lane, base);
    if (f) f->a = 3;
    return 1;
  }
  memset(t->column_owner + base, 0, n);
  t->held -= (i32)n;
  if (races(c)) { /* a release of the columns is a write of them */
    Actor a = generic_actor(w, pc, lane);
    race_tmem(c, t, 0, 128, base, n, 1, &a);
    for (u32 k = base; k < base + n; k++)
      for (int q = 0; q < 8; q++) memset(&t->tmem_cells[k * 8 + (u32)q], 0, sizeof(Cell));
  }
  progressed(c);
  return 1;
}

int tmem_check(Cluster* c, Cta* t, const Warp* w, i32 pc, int lane, u32 column, u32 count) {
  for (u32 k = column; k < column + count; k++)
    if (k >= TMEM_COLUMNS || !t->column_owner[k]) {
      Fault* f = fatal(c, F_TMEM_ALLOC, w, pc, lane, k);
      if (f) f->a = 4;
      return 0;
    }
  return 1;
}

/* shape: 0 32x32b, 1 16x64b, 2 16x128b, 3 16x256b, 4 16x32bx2; cell of lane t and register r */
static void cell(int shape, int t, int r, int split, u32* row, u32* col) {
  switch (shape) {
    case 0:
      *row = (u32)t;
      *col = (u32)r;
      break;
    case 1:
      *row = (u32)(t / 4 + 8 * (t % 2));
      *col = (u32)(2 * r + (t / 2) % 2);
      break;
    case 2:
      *row = (u32)(t / 4 + 8 * (r % 2));
      *col = (u32)(4 * (r / 2) + t % 4);
      break;
    case 3:
      *row = (u32)(t / 4 + 8 * (r / 2 % 2));
      *col = (u32)(8 * (r / 4) + 2 * (t % 4) + r % 2);
      break;
    default: *row = (u32)(t % 16); *col = (u32)(t < 16 ? r : split + r);
  }
}

static u32 span_of(int shape, int n, int split) {
  return shape == 0   ? (u32)n
         : shape == 1 ? 2 * (u32)n
         : shape == 2 ? 2 * (u32)n
         : shape == 3 ? 2 * (u32)n
                      : (u32)(split + n);
}

static void write_cells(Cta* t, const TstOp* s) {
  for (u32 k = 0; k < s->count; k++) {
    int shape = s->rows & 15, unpack = s->rows >> 4 & 1, split = s->rows >> 8;
    for (int l = 0; l < 32; l++) {
      u32 v = s->data[k * 32 + (u32)l], row, col;
      for (int half = 0; half <= unpack; half++) {
        cell(shape, l, unpack ? (int)(2 * k) + half : (int)k, split, &row, &col);
        t->tmem[(s->lane + row) * TMEM_COLUMNS + s->column + col] = unpack ? v >> 16 * half & 0xffff : v;
      }
    }
  }
}

void tmem_flush(Warp* w) {
  for (int k = 0; k < w->ntst; k++) {
    write_cells(w->cta, &w->tst[k]);
    free(w->tst[k].data);
  }
  w->ntst = 0;
}

static void store_cells(Warp* w, const Ins* i, u32 lane, u32 column, int how) {
  Cluster* c = w->cta->cluster;
  TstOp s = {lane, column, how, (u32)i->n, w->clock[C_TST], malloc(128u * (size_t)i->n)};
  for (int k = 0; k < i->n; k++) memcpy(s.data + 32 * k, ref(w, c->program->ext[i->ext + k]), 128);
  if (!w->ntst && (rnd(c) & 255) < c->p_now[P_TST]) {
    write_cells(w->cta, &s);
    free(s.data);
    return;
  }
  if (w->ntst == w->captst) {
    w->captst = w->captst ? 2 * w->captst : 16;
    w->tst = realloc(w->tst, (size_t)w->captst * sizeof *w->tst);
  }
  w->tst[w->ntst++] = s;
}

/* o[1] address, imm offset; ext: registers; mods: 1 group, shape << 4, 0x100 pack/unpack, 0x200 nobody reads
 * the result, split << 16 */
void tmem_access(Warp* w, const Ins* i, u32 exec) {
  Cta* t = w->cta;
  Cluster* c = t->cluster;
  i32 pc = (i32)(i - c->program->ins);
  if (i->op == OP_TC_WAIT) {
    if (i->mods) {
      tmem_flush(w);
      stream_done(w, C_TST, w->clock[C_TST]);
    } else race_ld_wait(w);
    return;
  }
  u32 taddr = lane32(w, i->o[1], __builtin_ctz(exec)) + (u32)i->imm, lane = taddr >> 16,
      column = taddr & 0xffff;
  int shape = i->mods >> 4 & 15, pack = !!(i->mods & 0x100), split = (int)(i->mods >> 16),
      write = i->op == OP_TC_ST;
  u32 rows = shape == 0 ? 32 : 16, span = span_of(shape, i->n * (pack ? 2 : 1), split),
      quarter = 32 * (u32)(w->index % 4);
  int uniform = exec == w->live && exec == FULL;
  EACH (exec) uniform &= lane32(w, i->o[1], (int)l) + (u32)i->imm == taddr;
  if (!uniform || !(lane == quarter || (rows == 16 && lane == quarter + 16))) {
    Fault* f = fatal(c, F_TMEM_LANE, w, pc, -1, taddr);
    if (f) {
      f->a = quarter;
      f->b = uniform;
    }
    return;
  }
  if (!tmem_check(c, t, w, pc, -1, column, span)) return;
  u32 clock = ++w->clock[write ? C_TST : C_TLD];
  if (races(c) && !(i->mods & 0x200)) {
    Actor a = {w->vc, (u32)comp_of(w, write ? C_TST : C_TLD), clock, pc, w->id, -1, 0};
    race_tmem(c, t, lane, rows, column, span, write, &a);
  }
  if (write) progressed(c);
  if (write) {
    store_cells(w, i, lane, column, shape | pack << 4 | split << 8);
    return;
  }
  const i32* dst = c->program->ext + i->ext;
  for (int k = 0; k < i->n; k++) {
    if (dst[k] == NONE) continue;
    u32* d = r32(w, dst[k]);
    for (int l = 0; l < 32; l++) {
      u32 row, col, v = 0;
      for (int half = 0; half <= pack; half++) {
        cell(shape, l, pack ? 2 * k + half : k, split, &row, &col);
        u32 x = t->tmem[(lane + row) * TMEM_COLUMNS + column + col];
        v |= pack ? (x & 0xffff) << 16 * half : x;
      }
      d[l] = v;
    }
  }
  if (races(c)) race_ld_issued(w, i, clock, lane, rows, column, span);
}
