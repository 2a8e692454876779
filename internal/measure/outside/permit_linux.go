package outside

import (
	"math"

	"golang.org/x/sys/unix"
)

// permitTracing lets any process of this user trace this one, which kernels with Yama
// otherwise grant to parents alone. Where there is no Yama it fails, and is not needed.
func permitTracing() { _ = unix.Prctl(unix.PR_SET_PTRACER, math.MaxUint, 0, 0, 0) }
