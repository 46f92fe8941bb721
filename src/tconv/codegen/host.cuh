// ==== launching, on the host; left out where only device code is compiled
#if !defined(__CUDACC_RTC__) && !defined(TCONV_EMULATOR)
#include <cstdint>
#include <cuda_runtime.h>
#include <vector>

// ---- where none prepares
// Enqueues a kernel, and returns a cudaError_t.
static int enqueue(const void* kernel, void** arguments, int64_t grid, int block, int shared_bytes, int64_t stream) {
// ---- where none prepares
// ---- where a kernel prepares
// Enqueues a kernel, and returns a cudaError_t. A kernel that `overlaps` may begin while the kernel before it runs; it
// waits for that kernel's end itself, by griddepcontrol.wait.
static int enqueue(const void* kernel, void** arguments, int64_t grid, int block, int shared_bytes, int64_t stream,
                   bool overlaps) {
// ---- where a kernel prepares
  if (grid >= int64_t(1) << 31) return cudaErrorInvalidConfiguration;
  const auto blocks = static_cast<unsigned>(grid);
  const auto on = reinterpret_cast<cudaStream_t>(stream);
// ---- where a kernel prepares
#if defined(TCONV_OVERLAPS) && CUDART_VERSION >= 12030
  static int driver = 0;
  if (driver == 0) cudaDriverGetVersion(&driver);
  if (overlaps && driver >= 12030) {
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = blocks, config.blockDim = block, config.dynamicSmemBytes = shared_bytes;
    config.stream = on, config.attrs = attribute, config.numAttrs = 1;
    return cudaLaunchKernelExC(&config, kernel, arguments);
  }
#endif
// ---- where a kernel prepares
  return cudaLaunchKernel(kernel, blocks, block, arguments, shared_bytes, on);
}

// Enqueues one kernel, after those that prepare for it, if any. Returns a cudaError_t. If y is 0, it enqueues nothing:
// it allows the kernel its shared memory on the current device (those that prepare need no leave), and returns the
// number of samples that one launch may take, the batch or what halving leaves of it, 0 if none fits.
//
// `numbers` holds:
//   0 number of the kernel    1 stream    2 multiprocessors    3 to 6 addresses of x, weight, bias and y
//   7 address of memory for prepared weights, then prepared inputs    8 channels of the tensor in which y lies
//   9 batch    10 to 12 depth, height and width of the input    13 to 15 depth, height and width of the output
//   16 on: addresses of the program's operands
// ---- where none prepares
static int64_t launched(const std::vector<int64_t>& numbers, tconv::Launch (*launch_of)(const tconv::Sizes&),
                        const void* kernel) {
// ---- where none prepares
// ---- where a kernel prepares
static int64_t launched(const std::vector<int64_t>& numbers, tconv::Launch (*launch_of)(const tconv::Sizes&),
                        const void* kernel, const void* of_weights, const void* of_inputs) {
// ---- where a kernel prepares
  const auto size = [&](int i) { return static_cast<int>(numbers[i]); };
  tconv::Sizes sizes{size(2), size(9), {size(10), size(11), size(12)}, {size(13), size(14), size(15)}};
  int64_t stream = numbers[1], x = numbers[3], weight = numbers[4], bias = numbers[5], y = numbers[6];
  if (y == 0) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, launch_of(sizes).shared_bytes);
    for (; sizes.batch > 0; sizes.batch /= 2) {
      const tconv::Launch fits = launch_of(sizes);
      if (fits.counted < tconv::index_limit && !fits.wide_index) break;
    }
    return sizes.batch;
  }
  int y_channels = size(8), (&input)[3] = sizes.input, (&output)[3] = sizes.output;
  const tconv::Launch launch = launch_of(sizes);
// ---- where a kernel prepares
  bool overlaps = false;
// ---- where a kernel prepares
// ---- where inputs are prepared
  if (launch.input_blocks > 0) {
    int64_t ordered = numbers[7] + launch.weight_bytes;
    void* arguments[] = {&x, &ordered, &sizes.batch, input, input + 1, input + 2};
    const int error =
        enqueue(of_inputs, arguments, launch.input_blocks, tconv::preparing_threads, 0, stream, overlaps);
    if (error != cudaSuccess) return error;
    x = ordered, overlaps = true;
  }
// ---- where inputs are prepared
// ---- where weights are prepared
  if (launch.weight_blocks > 0) {
    int64_t prepared = numbers[7];
    void* arguments[] = {&weight, &prepared};
    const int error =
        enqueue(of_weights, arguments, launch.weight_blocks, tconv::preparing_threads, 0, stream, overlaps);
    if (error != cudaSuccess) return error;
    weight = prepared, overlaps = true;
  }
// ---- where weights are prepared
  std::vector<void*> arguments = {&x, &weight, &bias, &y, &y_channels, &sizes.batch, input, input + 1,
                                  input + 2, output, output + 1, output + 2};
// ---- where programs are computed
  std::vector<int64_t> operands(numbers.begin() + 16, numbers.end());
  for (int64_t& operand : operands) arguments.push_back(&operand);
// ---- where programs are computed
// ---- where none prepares
  return enqueue(kernel, arguments.data(), launch.blocks, launch.threads, launch.shared_bytes, stream);
// ---- where none prepares
// ---- where a kernel prepares
  return enqueue(kernel, arguments.data(), launch.blocks, launch.threads, launch.shared_bytes, stream, overlaps);
// ---- where a kernel prepares
}

int64_t launch(const std::vector<int64_t>& numbers) {
  switch (numbers[0]) {
KERNELS
  }
  return cudaErrorInvalidValue;
}
#endif
