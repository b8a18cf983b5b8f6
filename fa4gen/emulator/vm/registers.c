/* Registers that asynchronous instructions still own: those that a tensor memory load will write, and those
 * that wgmma reads and writes. */
#include "vm.h"

void race_ld_issued(Warp* w, const Ins* i, u32 seq, u32 lane, u32 rows, u32 column, u32 span) {
  u32 id = seq % PENDING_LOADS;
  const i32* dst = w->cta->cluster->program->ext + i->ext;
  PendingLoad made = {seq, 0, (u8)lane, (u8)rows, (u16)column, (u16)span};
  for (int k = 0; k < i->n; k++)
    if (dst[k] >= 0) {
      w->ldmap[dst[k] / 128] = (u8)(id + 1);
      made.left++;
    }
  if (w->loads[id].left)
    w->ld_live--; /* more loads in flight than are kept: the oldest stays pending for good */
  w->loads[id] = made;
  w->ld_live += made.left > 0;
}

/* The load has read its cells: from now on that is an ordinary access of the warp, handed over by its next
 * release. */
static void performed(Warp* w, PendingLoad* load) {
  u32 generic = (u32)comp_of(w, C_GENERIC), pending = (u32)comp_of(w, C_TLD);
  for (u32 c = load->column; c < (u32)load->column + load->span; c++)
    for (u32 q = load->lane / 16u; q < (load->lane + load->rows) / 16u; q++) {
      Cell* cell = &w->cta->tmem_cells[c * 8 + q];
      for (int k = 0; k < 4; k++)
        if (cell->r[k].clock && cell->r[k].comp == generic)
          cell->r[k].clock = 0; /* older, and covered by the new one */
      for (int k = 0; k < 4; k++)
        if (cell->r[k].comp == pending && cell->r[k].clock == load->seq) {
          cell->r[k].comp = (u16)generic;
          cell->r[k].clock = w->clock[C_GENERIC];
        }
    }
  load->left = 0;
  w->ld_live--;
}

void race_ld_wait(Warp* w) {
  if (!races(w->cta->cluster) || !w->ld_live) return;
  for (int k = 0; k < PENDING_LOADS; k++)
    if (w->loads[k].left) performed(w, &w->loads[k]);
  memset(w->ldmap, 0, (size_t)w->cta->cluster->program->reg_bytes / 128 + 1);
  w->ld_live = 0;
}

static void consume(Warp* w, i32 slot) { /* a load counts as performed when all its registers were consumed */
  u32 id = w->ldmap[slot];
  if (!id) return;
  w->ldmap[slot] = 0;
  PendingLoad* load = &w->loads[id - 1];
  if (load->left && --load->left == 0) performed(w, load);
}

static void wgmma_touched(Warp* w, i32 pc, i32 slot, int write) {
  u32 seq = w->wgmap[slot];
  if (!seq) return;
  u32 done = w->vc[comp_of(w, C_WGMMA)], number = seq & 0x7fffffff;
  if (number <= done) {
    w->wgmap[slot] = 0;
    return;
  }
  if (seq >> 31 && !write) return; /* reading A again is harmless */
  Fault* f = fault(w->cta->cluster, F_WGMMA_REG, w, pc, -1, 0);
  if (f) f->a = slot;
}

void race_registers(Warp* w, const Ins* i, i32 pc) {
  const Program* p = w->cta->cluster->program;
  const Uses* u = &p->uses[pc];
  if (w->ld_live) {
    for (int k = 0; k < u->nsrc; k++) consume(w, p->use_ext[u->src + k]);
    for (int k = 0; k < u->ndst; k++) consume(w, p->use_ext[u->dst + k]);
  }
  if (!p->uses_wgmma || i->op == OP_WG_MMA) return;
  if (w->wg_log.n) {
    for (int k = 0; k < u->nsrc; k++) wgmma_touched(w, pc, p->use_ext[u->src + k], 0);
    for (int k = 0; k < u->ndst; k++) wgmma_touched(w, pc, p->use_ext[u->dst + k], 1);
  }
  for (int k = 0; k < u->ndst; k++) w->stamp_of[p->use_ext[u->dst + k]] = w->now;
}

void race_wgmma_registers(Warp* w, const Ins* i, i32 pc, u32 seq) {
  const i32* regs = w->cta->cluster->program->ext + i->ext;
  int accumulate = *r32(w, i->o[3]) & 1, in_registers = i->o[1] < 0 && i->o[1] == (i32)0x80000000 ? 4 : 0;
  for (int k = 0; k < i->n + in_registers; k++) {
    if (regs[k] < 0) continue;
    i32 slot = regs[k] / 128;
    if ((k >= i->n || accumulate) && w->stamp_of[slot] > w->wg_fence_stamp) {
      Fault* f = fault(w->cta->cluster, F_WGMMA_FENCE, w, pc, -1, 0);
      if (f) f->a = slot;
    }
    if (k < i->n) w->stamp_of[slot] = 0; /* from now on the product is the accumulator's last writer */
    w->wgmap[slot] = seq | (k >= i->n ? 0x80000000u : 0);
  }
}
