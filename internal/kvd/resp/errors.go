package resp

import (
	"errors"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// errorText returns the error message for an error of the backend. Client libraries look at the
// first word: they repeat commands after CLUSTERDOWN and TRYAGAIN, which is wrong for a write
// that may have happened.
func errorText(err error) string {
	switch {
	case errors.Is(err, ErrUncertain):
		return "UNCERTAIN " + err.Error()
	case errors.Is(err, ErrNoQuorum):
		return "CLUSTERDOWN The cluster is down: " + err.Error()
	case errors.Is(err, ErrExpired):
		return "TRYAGAIN " + err.Error()
	case errors.Is(err, ErrBusy):
		return "BUSY " + err.Error()
	case errors.Is(err, ErrLoading):
		return "LOADING " + err.Error()
	default:
		return "ERR " + err.Error()
	}
}

// textOf returns the error message for a result that is an error.
func textOf(r *wire.Result) string {
	switch r.Code {
	case wire.WrongType:
		if r.Found {
			return "ERR increment or decrement would overflow"
		}
		return "ERR value is not an integer or out of range"
	case wire.TooLarge:
		return "ERR the value would be larger than this replica takes, or the answer larger than 16 MB; nothing was changed"
	case wire.NotFound:
		return "NOLEASE the lease is gone"
	default:
		return "ERR the store does not understand this command: the replicas may run different versions of weir"
	}
}
