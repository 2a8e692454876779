// Package sight has what a proxy of either protocol shows of itself: snapshots of its
// state, the tables of the console, Prometheus metrics, and statistics of statements by
// their shape.
package sight

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/netloop"
)

// Snapshot is the state of one protocol's side of the proxy at one moment, loops
// added up. Counters count since the start.
type Snapshot struct {
	// Brief: all pools are one, without a name, and so are all lanes; statements,
	// databases and the times of logins are left out. It is for the live page, which
	// looks once a second.
	Brief          bool
	Engine         string // "postgresql" or "mysql"
	Uptime         time.Duration
	Clients        int
	Logins         uint64
	LoginsFailed   uint64
	LoginsRefused  uint64
	Checks         []CheckStatus
	Cancels        uint64
	ProtocolErrors uint64
	BadHints       uint64
	Loops          []netloop.Stats
	Pools          []PoolStatus
	Hosts          []HostStatus
	Databases      []DatabaseStatus
	Lanes          []LaneStatus
	Shapes         []ShapeStatus
	SlowLogged     uint64 // slow statements in the log
	SlowDropped    uint64 // ... that the log was too slow for
	Spans          SpanCounts
	Forwards       ForwardCounts
	// Taken are sessions taken over from another process, TakenNot those that were ended
	// then.
	Taken, TakenNot uint64
	Caches          []cache.Stats            // by database
	LoginTimes      map[string]*measure.Hist // ns, by database, of logins that came to a good end
}

// CheckStatus counts the logins that were decided one way.
type CheckStatus struct {
	Method string // by which the client proved who it is
	Way    string // "pooled", "dialed" or "relayed": what it cost the server
	Count  uint64
}

// ForwardCounts are requests to end a statement, or a session, of a client of another
// weir.
type ForwardCounts struct{ Sent, Refused, Failed uint64 }

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
	Cached                             uint64
	Transactions                       uint64 // a statement outside of one counts as one
	Assignments                        uint64 // of a backend to a client; 0 where that is not counted
	Parses, ServerParses, Binds        uint64 // of prepared statements; 0 where they are not counted
	Bytes                              uint64
	Received, Sent                     uint64 // over the sockets of clients
	Waits, Timeouts                    uint64
	Waited                             time.Duration
	Replays, Reruns                    uint64
	Stalls                             uint64 // shared reads that held up those behind them
	Moved                              uint64 // reads behind them, sent again elsewhere
	Preempted                          uint64 // reads that were ended to let others run, and ran again
	Strays                             uint64 // backends that held unexpected session state
	Opened, Closed, DialErrors         uint64
	Pins                               map[string]uint64 // by cause, since the start
	Listeners, Hubs, Channels          int               // clients that rest, the connections that listen for them, and on how many channels
	Heard, Notified                    uint64            // notifications: of these connections, and given to clients
	Unheard                            uint64            // clients that were ended because they may have missed some, or read too slowly
	Limited                            map[string]uint64 // what limits have refused or ended, by limit
	Pinned                             int               // clients pinned now
	Latency                            *measure.Hist     // ns, from the complete message to the answer
	Wait, Server                       *measure.Hist     // ... : until the server began with it, and from then on
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
	LagKnown      bool   // of a standby, beside a primary
	Lag           time.Duration
	Behind        uint64 // bytes of PostgreSQL's log, transactions of MySQL and MariaDB
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
	Text        string
	Verb        string
	Fingerprint uint64
	Site        string // where in a program it came from last, as file:line; "" if no hint tells
	Runs        uint64 // answered, by any path
	Grouped     uint64 // of these
	Errors      uint64
	Cost        time.Duration
	MeanBytes   float64
	ShapeCounts
}

// PoolOf returns the status of a pool, which is added if it is new.
func (s *Snapshot) PoolOf(database, user string) *PoolStatus {
	if s.Brief {
		database, user = "", ""
	}
	for i := range s.Pools {
		if p := &s.Pools[i]; p.Database == database && p.User == user {
			return p
		}
	}
	s.Pools = append(s.Pools, PoolStatus{Database: database, User: user, Pins: make(map[string]uint64), Limited: make(map[string]uint64), Latency: new(measure.Hist), Wait: new(measure.Hist), Server: new(measure.Hist)})
	return &s.Pools[len(s.Pools)-1]
}

// AddLane adds a lane.
func (s *Snapshot) AddLane(l LaneStatus) {
	if !s.Brief || len(s.Lanes) == 0 {
		s.Lanes = append(s.Lanes, l)
		return
	}
	sum := &s.Lanes[0]
	sum.Waiting += l.Waiting
	sum.InFlight += l.InFlight
	sum.Lanes += l.Lanes
	sum.Groups += l.Groups
	sum.Members += l.Members
	sum.Fallbacks += l.Fallbacks
	sum.Retried += l.Retried
	for why, n := range l.Batch.Reasons {
		sum.Batch.Reasons[why] += n
	}
}

// maxReportedShapes bounds the shapes in a snapshot, and with it the cardinality of
// metrics: so many that ran most often, and so many that took most time.
const maxReportedShapes = 100

// AddShapes adds the statements of a loop that ran most often, and those that took
// most time.
func (s *Snapshot) AddShapes(t *Shapes) {
	if s.Brief {
		return
	}
	var shapes []*Shape
	for _, sh := range t.byFP {
		if sh.Runs > 0 {
			shapes = append(shapes, sh)
		}
	}
	slices.SortFunc(shapes, func(a, b *Shape) int { return cmp.Compare(b.Runs, a.Runs) })
	if rest := shapes[min(len(shapes), maxReportedShapes):]; len(rest) > 0 {
		slices.SortFunc(rest, func(a, b *Shape) int { return cmp.Compare(b.Total, a.Total) })
		shapes = shapes[:maxReportedShapes+min(len(rest), maxReportedShapes)]
	}
	for _, sh := range shapes {
		s.Shapes = append(s.Shapes, ShapeStatus{
			Text: sh.Shown(), Verb: sh.Verb, Fingerprint: sh.Fingerprint, Site: sh.Site(), Runs: sh.Runs, Grouped: sh.Grouped, Errors: sh.Errors,
			Cost: sh.cost, MeanBytes: sh.bytes, ShapeCounts: sh.ShapeCounts,
		})
	}
}

// Sort orders pools by name and statements by how often they ran. What several loops
// have of one shape becomes one.
func (s *Snapshot) Sort() {
	slices.SortFunc(s.Pools, func(a, b PoolStatus) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.User, b.User))
	})
	type key struct {
		fingerprint uint64
		verb, text  string
	}
	at := make(map[key]int, len(s.Shapes))
	merged := s.Shapes[:0]
	for _, sh := range s.Shapes {
		k := key{sh.Fingerprint, sh.Verb, sh.Text}
		if i, seen := at[k]; seen {
			merged[i].add(&sh)
			continue
		}
		at[k] = len(merged)
		merged = append(merged, sh)
	}
	s.Shapes = merged
	slices.SortStableFunc(s.Shapes, func(a, b ShapeStatus) int { return cmp.Compare(b.Runs, a.Runs) })
}

// add adds what another loop has of the shape.
func (s *ShapeStatus) add(o *ShapeStatus) {
	if runs := s.Runs + o.Runs; runs > 0 {
		s.MeanBytes = (s.MeanBytes*float64(s.Runs) + o.MeanBytes*float64(o.Runs)) / float64(runs)
	}
	s.Site = cmp.Or(s.Site, o.Site)
	s.Runs += o.Runs
	s.Grouped += o.Grouped
	s.Errors += o.Errors
	s.Cost = max(s.Cost, o.Cost)
	s.ShapeCounts.add(o.ShapeCounts)
}

// Mean is the mean time of a run.
func (s *ShapeStatus) Mean() time.Duration { return s.Total / time.Duration(max(1, s.Runs)) }

// Waited is how much of the time of all runs the server had not begun with them.
func (s *ShapeStatus) Waited() time.Duration { return s.Total - s.Server }
