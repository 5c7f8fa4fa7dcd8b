// Force-included into the GPU build (CXXFLAGS=-include ...).
//
// Horovod 0.28.1 declares stream_executor::gpu::AsGpuStreamValue and expects libtensorflow to define
// it. TensorFlow removed the function, so the library would compile, link and then fail at import with
// an undefined symbol. This is the same function in terms of what TensorFlow 2.21 still offers.
//
// The guards keep it out of translation units that do not see CUDA or TensorFlow (Gloo, flatbuffers).
#pragma once

#if defined(__cplusplus) && HAVE_CUDA && defined(__has_include)
#if __has_include("xla/stream_executor/stream.h") && __has_include(<cuda_runtime.h>)

#include <cuda_runtime.h>

#include "xla/stream_executor/stream.h"

namespace stream_executor {
namespace gpu {
inline cudaStream_t AsGpuStreamValue(Stream* stream) {
  return static_cast<cudaStream_t>(stream->platform_specific_handle().stream);
}
}  // namespace gpu
}  // namespace stream_executor

#endif
#endif
