// Horovod 0.28.1 includes XLA's builder under the name it had until TensorFlow 2.18.
// TensorFlow 2.21 ships it as xla/hlo/builder/xla_builder.h.
#pragma once

#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_builder.h"

namespace xla {
// The GPU half of Horovod's xla_mpi_ops.cc still writes xla::StatusOr.
using ::absl::StatusOr;
}  // namespace xla
