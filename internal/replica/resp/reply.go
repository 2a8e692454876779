package resp

import (
	"sync/atomic"

	"github.com/weirdb/weir/internal/kvwire"
)

// Reply is the place of an answer in the order of a connection. Who has to
// complete it calls Done once; the connection owns it before and after that.
type Reply struct {
	done   atomic.Bool
	result [1]kvwire.Result // an array, so that a shape sees a slice in any case
	err    error
}

// Done completes the reply: err, or else result, whose memory must not be
// changed any more. The client gets it after the next Flush, at the latest.
func (r *Reply) Done(result kvwire.Result, err error) {
	r.result[0], r.err = result, err
	r.done.Store(true)
}
