// Kernels that CHECK mode stops with the expected message at the line marked `fault`; format: cases.py.

// case: half of the lanes
// expect: divergent SIMD-group operation: a lane of the SIMD-group returned instead
float v = x[i];
if (lane < 16) v = simd_sum(v);  // fault
x[i] = v;

// case: two calls in two branches
// expect: divergent SIMD-group operation: other lanes of the SIMD-group are at
float v = x[i];
if (lane < 16) v = simd_sum(v);
else v = simd_sum(-v);  // fault
x[i] = v;

// case: differing trip counts
// expect: SIMD-group operation after 1 lanes of the SIMD-group returned
float v = x[i];
for (uint j = 0; j < 2 + (i & 1); j++) v = simd_sum(v);  // fault
x[i] = v;

// case: lanes returned before
// expect: divergent SIMD-group operation: a lane of the SIMD-group returned instead
if (i >= 40) return;
x[i] = simd_sum(x[i]);  // fault

// case: partial SIMD-group
// expect: partial SIMD-group of 8 threads
// threads: 40
x[i] = simd_sum(x[i]);  // fault

// case: shuffle from lane 32
// expect: shuffle or broadcast from lane 32, which is not there
// threads: 32
x[i] = simd_shuffle(x[i], ushort(lane + 1));  // fault

// case: broadcast from lane 40
// expect: from lane 40
// threads: 32
x[i] = simd_broadcast(x[i], 40);  // fault

// case: matrix operation by some lanes
// expect: divergent SIMD-group operation: a lane of the SIMD-group returned instead
// threads: 32
simdgroup_float8x8 m(1.0f);
if (lane < 8) simdgroup_multiply(m, m, m);  // fault
x[i] = m.thread_elements()[0];

// case: one SIMD-group at the barrier
// expect: divergent threadgroup_barrier: .* (have )?returned
if (i < 32) threadgroup_barrier(mem_flags::mem_threadgroup);  // fault
x[i] = 1;

// case: two barriers in two branches
// expect: divergent threadgroup_barrier: other threads of the threadgroup are at
if (i < 32) threadgroup_barrier(mem_flags::mem_threadgroup);
else threadgroup_barrier(mem_flags::mem_threadgroup);  // fault

// case: barrier against SIMD function
// expect: divergence: threads wait for each other
// threads: 32
if (lane < 16) threadgroup_barrier(mem_flags::mem_threadgroup);  // fault
else x[i] = simd_sum(x[i]);

// case: barrier after a return
// expect: divergent threadgroup_barrier
if (i > 60) return;
threadgroup_barrier(mem_flags::mem_threadgroup);  // fault

// case: no barrier
// expect: data race on threadgroup memory: this read of byte 0, the write of thread 0
threadgroup float s[64];
s[t] = x[i];
x[i] = s[t & 31];  // fault

// case: barrier of the wrong memory
// expect: data race on threadgroup memory: this read .* no barrier with mem_flags::mem_threadgroup
threadgroup float s[64];
s[t] = x[i];
threadgroup_barrier(mem_flags::mem_device);
x[i] = s[t ^ 33];  // fault

// case: barrier of no memory
// expect: data race on threadgroup memory
threadgroup float s[64];
s[t] = x[i];
threadgroup_barrier(mem_flags::mem_none);
x[i] = s[t ^ 33];  // fault

// case: barrier of a SIMD-group, across
// expect: data race on threadgroup memory: this read of byte 124, the write of thread 31
threadgroup float s[64];
s[t] = x[i];
simdgroup_barrier(mem_flags::mem_threadgroup);
x[i] = s[t & 31];  // fault

// case: barrier of a SIMD-group, wrong memory
// expect: data race on threadgroup memory
threadgroup float s[64];
s[t] = x[i];
simdgroup_barrier(mem_flags::mem_device);
x[i] = s[t ^ 1];  // fault

// case: a SIMD function is no barrier
// expect: data race on threadgroup memory
threadgroup float s[64];
s[t] = x[i];
float v = simd_sum(x[i]);
x[i] = s[t ^ 1] + v;  // fault

// case: write after read
// expect: data race on threadgroup memory: this read of byte 252, the write of thread 63
threadgroup float s[64];
for (int j = 0; j < 2; j++) {
s[t] = x[i];
threadgroup_barrier(mem_flags::mem_threadgroup);
x[i] = s[63 - t];  // fault
}

// case: write after many read
// expect: data race on threadgroup memory: this write .* several threads
threadgroup float s[1];
if (t == 0) s[0] = 1;
threadgroup_barrier(mem_flags::mem_threadgroup);
x[i] = s[0];
if (t == 62) s[0] = 2;  // fault

// case: matrix stored and loaded
// expect: data race on threadgroup memory
// threads: 32
threadgroup float s[64];
simdgroup_float8x8 m(1.0f);
simdgroup_store(m, s, 8);
simdgroup_load(m, s, 8, ulong2(0), true);  // fault
x[i] = m.thread_elements()[0];

// case: device memory in a group
// expect: data race on device memory: this write of byte 4 of buffer 0, the read of thread 0
x[i] = 1;  // fault
x[0] = x[i ^ 1];

// case: device memory, barrier of the other
// expect: data race on device memory: this read .* no barrier with mem_flags::mem_device
x[i] = 1;
threadgroup_barrier(mem_flags::mem_threadgroup);
float v = x[i ^ 1];  // fault
threadgroup_barrier(mem_flags::mem_device);
x[i] = v;

// case: one byte of two threads
// expect: data race on device memory: this write of byte 0 of buffer 0, the write of thread 0
x[i & ~1u] = 1;  // fault

// case: two threadgroups write
// expect: data race between threadgroups on device memory: this write
// threads: 128
x[t] = float(group);  // fault

// case: two threadgroups, one reads
// expect: data race between threadgroups on device memory: this read of byte 0 of buffer 0, the write of thread 0
// threads: 128
if (group == 0) x[i] = 1;
else x[i] = x[i - 64];  // fault

// case: every threadgroup reads, one writes
// expect: data race between threadgroups on device memory: this write of byte 0 of buffer 0, the read of several threads
// threads: 192
float v = x[0];
threadgroup_barrier(mem_flags::mem_device);
if (i == 191) x[0] = v + 1;  // fault

// case: read past the end
// expect: out-of-bounds read of 4 bytes, 0 bytes after the end of buffer 0
float v = x[i + 1];  // fault
threadgroup_barrier(mem_flags::mem_device);
x[i] = v;

// case: write past the end
// expect: out-of-bounds write of 4 bytes, 0 bytes after the end of buffer 0
x[i + 1] = 1;  // fault

// case: read before the start
// expect: out-of-bounds read of 4 bytes, 4 bytes before the start of buffer 0
x[i] = x[int(i) - 1];  // fault

// case: far past the end
// expect: out-of-bounds read of 4 bytes
x[i] = x[i + 1000000];  // fault

// case: vector half outside
// expect: out-of-bounds read of 4 bytes, 12 bytes after the end of buffer 0
x[i] = (*(device float4*)(x + 60 + 4 * (i == 63))).w;  // fault

// case: threadgroup array
// expect: out-of-bounds write of 4 bytes in threadgroup memory
threadgroup float s[64];
threadgroup float* p = s;
p[t + 1] = x[i];  // fault

// case: row of a threadgroup array
// expect: out-of-bounds index of an array
threadgroup float s[4][16];
s[t / 16][t % 16 + 1] = x[i];  // fault

// case: private array
// expect: out-of-bounds index of an array
// parameters: device float* x [[buffer(0)]], device const float* y [[buffer(1)]]
float p[4];
for (int j = 0; j < 4; j++) p[j] = y[j];
x[i] = p[i];  // fault

// case: constant table
// expect: out-of-bounds index of an array
constant float table[4] = {1, 2, 3, 4};
// body
x[i] = table[i];  // fault

// case: float4 at 4 bytes
// expect: misaligned
if (i == 0) x[0] = (*(device float4*)(x + 1)).x;  // fault

// case: float4 loaded whole at 4 bytes
// expect: misaligned
if (i == 0) {
device const float* y = x;
float4 a = *(device const float4*)(y + 1);  // fault
x[0] = a.x + a.w;
}

// case: float4 of two loaded at 8 bytes
// expect: misaligned
if (i == 0) {
float4 a = ((device float4*)(x + 2))[1] + 1.0f;  // fault
x[0] = a.x + a.w;
}

// case: half4 loaded at 2 bytes
// expect: misaligned
if (i == 0) {
half4 a = *(device half4*)((device half*)x + 1);  // fault
x[0] = float(a.y);
}

// case: bfloat4 loaded at 4 bytes
// expect: misaligned
if (i == 0) {
bfloat4 a = *(device bfloat4*)((device bfloat*)x + 2);  // fault
x[0] = float(a.z);
}

// case: uint2 loaded at 4 bytes
// expect: misaligned
if (i == 0) {
uint2 a = *(device uint2*)(x + 1);  // fault
x[0] = float(a.x + a.y);
}

// case: float2 of threadgroup memory loaded at 4 bytes
// expect: misaligned
threadgroup float s[66];
s[t] = x[i];
threadgroup_barrier(mem_flags::mem_threadgroup);
float2 a = *(threadgroup float2*)(s + t / 2 * 2 % 32 + 1);  // fault
x[i] = a.x + a.y;

// case: half4 given to a function from 4 bytes
// expect: misaligned
inline float sum(half4 v) { return float(v.x) + float(v.w); }
// body
if (i == 0) x[0] = sum(*(device const half4*)(x + 1));  // fault

// case: uint at a byte
// expect: misaligned
if (i == 0) x[0] = float(*(device uint*)((device uchar*)x + 1));  // fault

// case: ushort at a byte
// expect: misaligned
if (i == 0) x[0] = float(*(device ushort*)((device uchar*)x + 3));  // fault

// case: division by zero
// expect: integer division by zero
x[i] = float(7u / i);  // fault

// case: uninitialised threadgroup memory
// expect: read of uninitialised threadgroup memory, byte 252
threadgroup float s[64];
if (t < 63) s[t] = x[i];
threadgroup_barrier(mem_flags::mem_threadgroup);
x[i] = s[63 - t];  // fault

// case: threadgroup memory above 32 KB
// expect: 36000 bytes of threadgroup memory, the limit is 32768
threadgroup float s[9000];  // fault
s[t] = 1;
x[i] = s[t];

// case: two arrays above 32 KB
// expect: 34000 bytes of threadgroup memory
threadgroup float s[8000];
threadgroup float r[500];  // fault
s[t] = r[t] = 1;
x[i] = s[t];

// case: cast to writable
// expect: write to read-only buffer 1
// parameters: device float* x [[buffer(0)]], device const float* y [[buffer(1)]]
((device float*)y)[i] = 1;  // fault

// case: another thread's private memory
// expect: another thread's private memory
threadgroup ulong s[64];
float v = x[i];
thread float* p = &v;
s[t] = (ulong)p;
threadgroup_barrier(mem_flags::mem_threadgroup);
*(thread float*)s[t ^ 1] = 1;  // fault
x[i] = v;
