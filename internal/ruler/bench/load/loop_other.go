//go:build !linux

package load

import (
	"errors"
	"net"

	"github.com/weirdb/weir/internal/measure"
)

// loop exists on Linux only.
type loop struct {
	conns         []*conn
	ops, totalOps int64
	latency       measure.Hist
	errors        map[string]int64
	examples      []string
}

type conn struct {
	id     int
	client Client
	ledger clientLedger
}

func newLoop(*control) (*loop, error) {
	return nil, errors.New("the load generator needs Linux (epoll)")
}

func (*loop) adopt(int, net.Conn, Client) error { return errors.ErrUnsupported }
func (*loop) run() error                        { return errors.ErrUnsupported }
func (*loop) wake()                             {}
func (*loop) close()                            {}
func (*conn) settle()                           {}
