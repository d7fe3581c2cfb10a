#include "textflag.h"

// The classes of the pairs of bytes that begin in IN and are in NEXT, in IN: those of each half
// by a table lookup. NEXT is overwritten.
#define CLASSES(IN, NEXT) \
	VPAND   Y5, IN, Y15        \
	VPSHUFB Y15, Y0, Y15       \
	VPSRLW  $4, IN, IN         \
	VPAND   Y5, IN, IN         \
	VPSHUFB IN, Y1, IN         \
	VPAND   Y15, IN, IN        \
	VPAND   Y5, NEXT, Y15      \
	VPSHUFB Y15, Y2, Y15       \
	VPAND   Y15, IN, IN        \
	VPSRLW  $4, NEXT, NEXT     \
	VPAND   Y5, NEXT, NEXT     \
	VPSHUFB NEXT, Y3, NEXT     \
	VPAND   NEXT, IN, IN

// The groups of four bytes of IN that are runs, as bits at TO.
#define RUNS(IN, TO) \
	VPCMPGTB  Y6, IN, Y15      \
	VPCMPEQD  Y4, Y15, Y15     \
	VMOVMSKPS Y15, AX          \
	MOVB      AX, TO

// The bytes of IN that are of a class, as bits at TO.
#define HITS(IN, TO) \
	VPCMPEQB  Y7, IN, IN       \
	VPMOVMSKB IN, AX           \
	NOTL      AX               \
	MOVL      AX, TO

// func scanBlocks(text *byte, blocks int, classes *nibbles, hits *uint64, runs *uint16) bool
//
// Of each block of 64 bytes: in runs the groups of four bytes that are runs, and in hits the
// bytes that with their next one are of a class; hits are left alone if there are none, and
// the answer is whether any block has some. One byte behind the last block is read, too.
TEXT ·scanBlocks(SB), NOSPLIT, $0-41
	MOVQ text+0(FP), SI
	MOVQ blocks+8(FP), CX
	MOVQ classes+16(FP), DX
	MOVQ hits+24(FP), DI
	MOVQ runs+32(FP), R8
	MOVB $0, ret+40(FP)
	VBROADCASTI128 0(DX), Y0  // classes by the low half of a byte
	VBROADCASTI128 16(DX), Y1 // by its high half
	VBROADCASTI128 32(DX), Y2 // by the low half of the next one
	VBROADCASTI128 48(DX), Y3 // by its high half
	VPCMPEQB Y4, Y4, Y4       // all ones
	VPSRLW $12, Y4, Y5
	VPACKUSWB Y5, Y5, Y5      // 15 in each byte
	MOVL $0x2a2a2a2a, AX
	VMOVD AX, X6
	VPBROADCASTD X6, Y6       // '*' in each byte
	VPXOR Y7, Y7, Y7

block:
	VMOVDQU (SI), Y9
	VMOVDQU 1(SI), Y10
	VMOVDQU 32(SI), Y11
	VMOVDQU 33(SI), Y12
	RUNS(Y9, (R8))
	RUNS(Y11, 1(R8))
	CLASSES(Y9, Y10)
	CLASSES(Y11, Y12)
	VPOR Y9, Y11, Y13
	VPTEST Y13, Y13
	JNZ hit

next:
	ADDQ $64, SI
	ADDQ $8, DI
	ADDQ $2, R8
	DECQ CX
	JNZ block
	VZEROUPPER
	RET

hit:
	HITS(Y9, (DI))
	HITS(Y11, 4(DI))
	MOVB $1, ret+40(FP)
	JMP next
