package mysql

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// While a client waits, no more of its next message is gathered than of any other: the
// limit of one message is looked at when its turn has come.
func TestNothingIsGatheredForWhoWaits(t *testing.T) {
	t.Parallel()
	long := append(mywire.AppendHeader(nil, 1<<20, 0), mywire.ComQuery)
	for state := stateOpen; state <= stateLeavingAsking; state++ {
		c := &client{s: &netloop.Sock{In: long}, state: state}
		if got, want := c.WantsMore(), state == stateOpen || state == stateSending; got != want {
			t.Errorf("state %d: wants more: %v, want %v", state, got, want)
		}
	}
}
