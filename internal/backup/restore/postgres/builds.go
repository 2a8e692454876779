package postgres

import (
	"net"
	"runtime"
	"sync/atomic"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// builds decides whether the server may use parallel workers for an index. Each
// job builds an index in a process of its own. Where these fill the processors,
// workers add only the cost of merging what they sorted: 1 to 5 % of the server's CPU
// time in a restore with two jobs on two processors (docs/results/speed-backup.md).
// At the end, when the largest index has no equal left beside it, workers fill the
// processors that are idle.
type builds struct {
	// full says that the jobs fill the server's processors.
	full bool

	others int64        // jobs beside the one that asks
	left   atomic.Int64 // bytes of tables of the builds that have not started
}

// newBuilds counts on processors of this machine: those of a server elsewhere
// are not known, and it decides by itself.
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

// expect counts an index of a table of so many bytes that is to be built.
func (b *builds) expect(size int64) { b.left.Add(size) }

// start takes a build off the count and reports whether it is to do without
// parallel workers, because each of the other jobs has as much to build.
func (b *builds) start(size int64) (alone bool) {
	left := b.left.Add(-size)
	return b.full && size > 0 && left >= size*max(1, b.others)
}
