// What only a GPU has: where code and memory are, a thread's place, and the
// instructions that C lacks. All else is plain C++. emulate/machine.h has the
// same for the emulated driver, which runs the kernels where there is no GPU.
#pragma once

#define DEV __attribute__((device, always_inline)) inline
#define DEVCALL __attribute__((device, noinline)) // a call, not inlined
#define KERNEL(...) extern "C" __attribute__((global, launch_bounds(__VA_ARGS__))) void
#define UNROLL _Pragma("unroll")
#define SHARED __attribute__((shared))
#define SHARED_OF_LAUNCH(type, name) extern SHARED __attribute__((aligned(16))) type name[]

// at is a place in the device's memory. Saying which memory gives faster loads.
template <class T> DEV T *at(u64 address) { return (T *)(__attribute__((address_space(1))) T *)address; }

DEV int threadX() { return __nvvm_read_ptx_sreg_tid_x(); }
DEV int blockX() { return __nvvm_read_ptx_sreg_ctaid_x(); }
DEV int blockY() { return __nvvm_read_ptx_sreg_ctaid_y(); }
DEV int blockZ() { return __nvvm_read_ptx_sreg_ctaid_z(); }
DEV int blockLen() { return __nvvm_read_ptx_sreg_ntid_x(); }
DEV int gridLen() { return __nvvm_read_ptx_sreg_nctaid_x(); }

// barrier waits for all threads of the block; anyOf also says whether one of
// them has x ≠ 0.
DEV void barrier() { __syncthreads(); }
DEV bool anyOf(int x) { return __nvvm_bar0_or(x); }

// What the threads of a warp do together: x of the lane whose number differs in
// these bits, is so much less, or is this; and a bit for each lane with x.
DEV float shuffle(float x, int bits) { return __nvvm_shfl_sync_bfly_f32(~0u, x, bits, 31); }
DEV int shuffle(int x, int bits) { return __nvvm_shfl_sync_bfly_i32(~0u, x, bits, 31); }
DEV int shuffleUp(int x, int less) { return __nvvm_shfl_sync_up_i32(~0u, x, less, 0); }
DEV int shuffleFrom(int x, int lane) { return __nvvm_shfl_sync_idx_i32(~0u, x, lane, 31); }
DEV u32 ballot(bool x) { return __nvvm_vote_ballot_sync(~0u, x); }

DEV float exp2Of(float x) {
	float y;
	asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
// The next two take numbers below 2⁻¹²⁶ for 0, which spares three instructions.
DEV float exp2Flushed(float x) {
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
// inverseOf is 1/x to about an ulp.
DEV float inverseOf(float x) {
	float y;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
DEV float rootOf(float x) { return __nvvm_sqrt_rn_f(x); }

// What follows is for GPUs of compute capability 8.0 or newer.

// pairBF16 and pairF16 round two numbers, the first to the lower half.
DEV u32 pairBF16(float x, float y) {
	u32 p;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(p) : "f"(y), "f"(x));
	return p;
}
DEV u32 pairF16(float x, float y) {
	u32 p;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(p) : "f"(y), "f"(x));
	return p;
}

DEV u32 sharedAddress(const void *p) { return (u32)(u64)(const __attribute__((address_space(3))) void *)p; }

// startCopy starts a copy of 16 bytes to shared memory, or of zeros; endCopies
// waits for those of the thread.
DEV void startCopy(void *to, u64 from, bool there) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sharedAddress(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
DEV void endCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// loadMatrices gives a warp four matrices of 8×8 elements of 16 bits from shared
// memory: lane i says where row i%8 of matrix i/8 lies, and gets elements 2·(i%4)
// and 2·(i%4)+1 of row i/4 of each; or with loadTransposed of their transposes.
DEV void loadMatrices(u32 (&a)[4], const unsigned short *p) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(sharedAddress(p)) : "memory");
}
DEV void loadTransposed(u32 (&a)[4], const unsigned short *p) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(sharedAddress(p)) : "memory");
}

// multiplyBF16 and multiplyF16 add a·b to c: matrices of 16×16, 16×8 and 16×8
// elements, which lie in the threads of a warp as attention_half.cu says.
DEV void multiplyBF16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void multiplyF16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
