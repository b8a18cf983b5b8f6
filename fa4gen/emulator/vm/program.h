/* What Python and the machine share: the program's arrays, a launch, and the records of faults. */
#ifndef FA4GEN_PROGRAM_H
#define FA4GEN_PROGRAM_H
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;

/* one instruction, as decode/encoder.py packs it */
typedef struct {
  u16 op, flags; /* flags: DEST_* of o[0] */
  i32 guard; /* -1, or predicate offset * 2 + negated */
  i32 o[8]; /* operand: offset in the register file, or ~offset in the constants */
  i32 ext, n; /* a list of n more operands in `ext` */
  i64 imm;
  u32 mods;
  i32 target;
  u32 mods2;
  i32 line;
} Ins;
enum { DEST_NONE, DEST_32, DEST_64, DEST_PRED };
typedef struct {
  i32 src, nsrc, dst, ndst;
} Uses; /* registers touched, in slots of 128 bytes */
typedef struct {
  u64 address, bytes;
  u32 initialised;
  u32 pad;
  u32* shadow;
} Range;

typedef struct {
  i32 kind, pc, other_pc, cta, warp, lane, other_cta, other_warp;
  u64 address;
  i64 a, b, c, d;
} Fault;

typedef struct {
  const Ins* ins;
  const i32* ext;
  const char* consts;
  const Uses* uses;
  const i32* use_ext;
  const u8* params;
  i32 count, reg_bytes, param_bytes, smem_bytes, nspecials;
  const i32* specials; /* pairs: which, offset */
  i32 uses_wgmma;
} Program;

enum { PERTURB_EX2 = 1, PERTURB_LG2 = 2, PERTURB_RCP = 4, PERTURB_WGMMA = 8 };

typedef struct {
  Program program;
  u32 grid[3], block[3], cluster[3];
  u64 seed;
  u32 perturb, pad; /* PERTURB_*: what may differ from the result computed here */
  i32 races, nranges;
  Range* ranges;
  u64 spin_limit;
  /* results */
  Fault* faults;
  i32 max_faults, nfaults;
  u64* op_counts; /* per statement */
  u64 instructions, clusters_done;
  i32 deadlocked, stop;
  u64 next_cluster; /* shared by the workers */
  i32 active, spinning; /* workers, and those that only spin */
} Launch;
#endif
