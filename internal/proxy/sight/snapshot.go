// Package sight is what a proxy shows of itself, whatever its protocol: snapshots
// of its state, the console's tables, Prometheus metrics, and what is learned of
// statements by their shape.
package sight

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/proxy/netloop"
)

// Snapshot is the state of one protocol's side of the proxy at one moment, loops
// added up. Counters count since the start.
type Snapshot struct {
	Engine         string // "postgresql" or "mysql"
	Uptime         time.Duration
	Clients        int
	Logins         uint64
	LoginsFailed   uint64
	LoginsRefused  uint64
	Cancels        uint64
	ProtocolErrors uint64
	BadHints       uint64
	Loops          []netloop.Stats
	Pools          []PoolStatus
	Hosts          []HostStatus
	Databases      []DatabaseStatus
	Lanes          []LaneStatus
	Shapes         []ShapeStatus
}

// PoolStatus is one pool.
type PoolStatus struct {
	Database, User string
	Running        bool // on some loop, statements begin
	Size           int
	Clients        int // logged in
	Active         int // have a unit under way
	WaitingClients int // wait for a backend of their own
	Waiting        int // statements that wait for a backend
	OldestWait     time.Duration
	Backends       int
	Free           int
	Shared         int // pipeline reads
	Owned          int // serve one client
	Laned          int // run a group
	Dialing        int

	Statements, Reads, Grouped, Errors uint64
	Transactions                       uint64 // a statement outside of one counts as one
	Bytes                              uint64
	Received, Sent                     uint64 // over the sockets of clients
	Waits, Timeouts                    uint64
	Waited                             time.Duration
	Replays, Reruns                    uint64
	Stalls                             uint64 // shared reads that held up those behind them
	Moved                              uint64 // reads behind them, sent again elsewhere
	Preempted                          uint64 // reads that were ended to let others run, and ran again
	Strays                             uint64 // backends that held state of nobody's
	Opened, Closed, DialErrors         uint64
	Pins                               map[string]uint64 // by cause, since the start
	Pinned                             int               // clients pinned now
	Latency                            *measure.Hist     // ns, from the complete message to the answer
}

// DatabaseStatus is what the console has made of a database.
type DatabaseStatus struct {
	Name     string
	Paused   bool
	Disabled bool
}

// HostStatus is what is known of one of the hosts that connections may go to.
type HostStatus struct {
	Host, Address string
	Role          string // primary, standby or unknown
	Term          uint64 // PostgreSQL's timeline; 0 if not known
	Leader        bool   // Patroni names it
	Current       bool   // new connections go there
	Err           string // why the last question was not answered
}

// LaneStatus is one write lane.
type LaneStatus struct {
	Database, User string
	Kind           string // rows, solo or transaction
	Window         time.Duration
	Text           string
	Waiting        int
	InFlight       int
	Lanes          int
	Limit          int
	Groups         uint64
	Members        uint64
	Fallbacks      uint64
	Retried        uint64
	Batch          batch.Stats
}

// ShapeStatus is what is known of one statement shape.
type ShapeStatus struct {
	Text      string
	Verb      string
	Runs      uint64 // answered, by any path
	Grouped   uint64 // of these
	Errors    uint64
	Cost      time.Duration
	MeanBytes float64
}

// PoolOf returns the status of a pool, which is added if it is new.
func (s *Snapshot) PoolOf(database, user string) *PoolStatus {
	for i := range s.Pools {
		if p := &s.Pools[i]; p.Database == database && p.User == user {
			return p
		}
	}
	s.Pools = append(s.Pools, PoolStatus{Database: database, User: user, Pins: make(map[string]uint64), Latency: new(measure.Hist)})
	return &s.Pools[len(s.Pools)-1]
}

// maxReportedShapes bounds the shapes in a snapshot, busiest first, and with
// it the cardinality of metrics.
const maxReportedShapes = 100

// AddShapes adds the busiest statements of a loop.
func (s *Snapshot) AddShapes(t *Shapes) {
	var shapes []*Shape
	for _, sh := range t.byFP {
		if sh.Runs > 0 {
			shapes = append(shapes, sh)
		}
	}
	slices.SortFunc(shapes, func(a, b *Shape) int { return cmp.Compare(b.Runs, a.Runs) })
	for _, sh := range shapes[:min(len(shapes), maxReportedShapes)] {
		s.Shapes = append(s.Shapes, ShapeStatus{
			Text: sh.Shown(), Verb: sh.Verb, Runs: sh.Runs, Grouped: sh.Grouped, Errors: sh.Errors,
			Cost: sh.cost, MeanBytes: sh.bytes,
		})
	}
}

// Sort orders pools by name and statements by how often they ran.
func (s *Snapshot) Sort() {
	slices.SortFunc(s.Pools, func(a, b PoolStatus) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.User, b.User))
	})
	slices.SortFunc(s.Shapes, func(a, b ShapeStatus) int { return cmp.Compare(b.Runs, a.Runs) })
}
