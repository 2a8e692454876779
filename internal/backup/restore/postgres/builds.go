package postgres

import (
	"net"
	"runtime"
	"sync/atomic"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// builds decides whether the server may use parallel workers for an index build. Each job
// builds an index in a server process of its own. While these use all processors, parallel
// workers only add the cost of merging what they sorted: 1 to 5 % of the server's CPU time in a
// restore with two jobs on two processors (docs/results/speed-backup.md). At the end, when the
// largest index is built alone, parallel workers use the idle processors.
type builds struct {
	// full says that the jobs use all of the server's processors.
	full bool

	others int64        // concurrent jobs besides the current one
	left   atomic.Int64 // bytes of the tables whose builds have not started
}

// newBuilds assumes that the server has this machine's processors. For a server on another
// machine these are unknown, and the server decides.
func newBuilds(cfg pgwire.ConnectConfig, jobs int) *builds {
	return &builds{full: local(cfg) && jobs >= runtime.GOMAXPROCS(0), others: int64(jobs - 1)}
}

// local reports whether a server is on this machine, by its address.
func local(cfg pgwire.ConnectConfig) bool {
	host, _, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return cfg.Network != "tcp" // a socket's path has no port
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// expect adds an index build for a table of the given size.
func (b *builds) expect(size int64) { b.left.Add(size) }

// start subtracts a build and reports whether it should not use parallel workers, because each
// of the other jobs has as much to build.
func (b *builds) start(size int64) (alone bool) {
	left := b.left.Add(-size)
	return b.full && size > 0 && left >= size*max(1, b.others)
}
