"""Which unit of an SM executes a SASS instruction, by its mnemonic: the columns of a report.

Sources: NVIDIA's instruction set tables (CUDA Binary Utilities, Hopper and Blackwell) for what each
mnemonic does; Nsight Compute's pipe names for IMAD on the FMA pipe. That F2FP and FMNMX share the
ALU is assumed (no table says so for Blackwell). What the tables lack is counted as `other`, so that
nothing new hides in a known column.
"""

UNITS = (
    "tensor",
    "mufu",
    "fma",
    "alu",
    "tensor_memory",
    "shared",
    "global",
    "local",
    "tma",
    "sync",
    "uniform",
    "control",
    "other",
)

EXACT = {
    "tensor": "HGMMA QGMMA IGMMA BGMMA HMMA IMMA QMMA OMMA DMMA UTCHMMA UTCQMMA UTCIMMA UTCOMMA",
    "mufu": "MUFU",
    "fma": "FFMA FFMA2 FMUL FMUL2 FADD FADD2 HFMA2 HMUL2 HADD2 IMAD IDP FSWZADD",
    "alu": "IADD IADD3 VIADD LOP LOP3 SHF SHL SHR LEA ISETP FSETP FSEL SEL FMNMX FMNMX3 IMNMX"
    " VIMNMX VIMNMX3 VIADDMNMX PRMT MOV MOV32I F2FP FCHK R2P P2R PLOP3 PSETP IABS POPC FLO BMSK"
    " SGXT CS2R VABSDIFF I2FP HSETP2 HMNMX2 BREV I2F F2I F2F I2I FRND LEPC",
    "tensor_memory": "LDTM STTM UTCCP UTCATOMSWS UTCSHIFT",
    "shared": "LDS STS LDSM STSM ATOMS STAS SHFL",
    "global": "LDG STG LD ST RED REDG ATOM ATOMG LDGSTS LDC CCTL CCTLL CCTLT",
    "local": "LDL STL",
    "tma": "UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP UBLKRED UBLKPF",
    "sync": "SYNCS BAR WARPGROUP WARPSYNC DEPBAR MEMBAR FENCE ERRBAR UTCBAR ARRIVES LDGDEPBAR ELECT"
    " USETMAXREG UCGABAR_ARV UCGABAR_WAIT ACQBULK UVIRTCOUNT",
    "uniform": "LDCU R2UR S2UR S2R VOTEU VOTE REDUX",
    "control": "BRA BRX JMP CALL RET EXIT BSSY BSYNC BREAK NOP NANOSLEEP YIELD BPT KILL PREEXIT",
}
UNIT_OF = {op: unit for unit, ops in EXACT.items() for op in ops.split()}


def unit_of(mnemonic: str) -> str:
    """The unit of a mnemonic without its modifiers: `FMUL2` -> `fma`, `UIADD3` -> `uniform`."""
    if mnemonic in UNIT_OF:
        return UNIT_OF[mnemonic]
    return "uniform" if mnemonic.startswith("U") else "other"
