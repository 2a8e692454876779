package outside

import (
	"math"

	"golang.org/x/sys/unix"
)

// permitTracing permits all processes of this user to trace this one; kernels with Yama
// otherwise permit only parents. Without Yama it fails, and is not needed.
func permitTracing() { _ = unix.Prctl(unix.PR_SET_PTRACER, math.MaxUint, 0, 0, 0) }
