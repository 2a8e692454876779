package dash

import (
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// State is what the page shows of a proxy at one moment. Counters count since
// the start. It is the body of /snapshot.json: fields may be added, and are not
// renamed without notice.
type State struct {
	Time          time.Time `json:"time"`
	Version       string    `json:"version"`
	Server        string    `json:"server"` // address of the database, or addresses
	Listen        string    `json:"listen"` // address for clients, or addresses
	Sides         []Side    `json:"sides"`
	UptimeSeconds float64   `json:"uptime_seconds"`

	Clients        int     `json:"clients"`
	Logins         Logins  `json:"logins"`
	ProtocolErrors uint64  `json:"protocol_errors"`
	BadHints       uint64  `json:"bad_hints"`
	Loops          int     `json:"loops"`
	BusySeconds    float64 `json:"busy_seconds"` // of all loops
	BytesIn        uint64  `json:"bytes_in"`     // over all sockets, both sides
	BytesOut       uint64  `json:"bytes_out"`

	Cache      Cache       `json:"cache"`
	Pools      []Pool      `json:"pools"`
	Lanes      []Lane      `json:"lanes"`
	Hosts      []Host      `json:"hosts,omitempty"`
	Statements []Statement `json:"statements"` // busiest first
}

// Side is one protocol's side of the proxy.
type Side struct {
	Engine  string `json:"engine"` // as in metrics
	Title   string `json:"title"`  // for people
	Server  string `json:"server"` // address of the database
	Listen  string `json:"listen"` // address for clients
	Clients int    `json:"clients"`
}

// Logins counts clients by the outcome of their login.
type Logins struct {
	Accepted uint64 `json:"accepted"`
	Failed   uint64 `json:"failed"`
	Refused  uint64 `json:"refused"`
}

// Pool is the connections of one user to one database.
type Pool struct {
	Engine   string `json:"engine"`
	Database string `json:"database"`
	User     string `json:"user"`
	Size     int    `json:"size"`

	Clients      int   `json:"clients"`
	Active       int   `json:"active"` // clients with a statement under way
	Pinned       int   `json:"pinned"`
	Waiting      int   `json:"waiting"` // statements without a backend
	OldestWaitNs int64 `json:"oldest_wait_ns"`

	Backends Backends `json:"backends"`

	// Statements answered, by path.
	Shared  uint64 `json:"shared"`
	Grouped uint64 `json:"grouped"`
	Alone   uint64 `json:"alone"`
	Cached  uint64 `json:"cached"` // by the cache

	Errors   uint64            `json:"errors"`
	Timeouts uint64            `json:"timeouts"`
	Reruns   uint64            `json:"reruns"`
	Replays  uint64            `json:"replays"`
	Pins     map[string]uint64 `json:"pins"`    // by cause
	Limited  map[string]uint64 `json:"limited"` // what limits have refused or ended, by limit

	// Latency, in ns from the complete message of a client to its answer, is
	// rendered as LatencyNs.
	Latency   *measure.Hist `json:"-"`
	LatencyNs Quantiles     `json:"latency_ns"` // since the start
}

// Backends counts server connections by state.
type Backends struct {
	Free       int `json:"free"`
	Shared     int `json:"shared"` // pipeline reads of several clients
	Owned      int `json:"owned"`  // serve one client
	Laned      int `json:"laned"`  // run a group
	Connecting int `json:"connecting"`
}

// Quantiles summarize a histogram.
type Quantiles struct {
	Count uint64 `json:"count"`
	P50   int64  `json:"p50"`
	P90   int64  `json:"p90"`
	P95   int64  `json:"p95"`
	P99   int64  `json:"p99"`
	Max   int64  `json:"max"`
}

func quantiles(h *measure.Hist) Quantiles {
	if h == nil {
		return Quantiles{}
	}
	return Quantiles{Count: h.Count(), P50: h.Quantile(0.5), P90: h.Quantile(0.9), P95: h.Quantile(0.95), P99: h.Quantile(0.99), Max: h.Max()}
}

// Lane is one write lane.
type Lane struct {
	Engine   string `json:"engine"`
	Database string `json:"database"`
	User     string `json:"user"`
	Kind     string `json:"kind"`      // rows, solo or transaction
	WindowNs int64  `json:"window_ns"` // 0: adaptive
	Text     string `json:"text"`

	Waiting  int `json:"waiting"`   // statements
	InFlight int `json:"in_flight"` // groups
	Allowed  int `json:"allowed"`   // groups that may be in flight now

	Groups    uint64 `json:"groups"`
	Members   uint64 `json:"members"`
	Fallbacks uint64 `json:"fallbacks"`
	Retried   uint64 `json:"retried"`

	SizeP50    int64 `json:"size_p50"`
	SizeMax    int64 `json:"size_max"`
	WaitP50Ns  int64 `json:"wait_p50_ns"`
	WaitP99Ns  int64 `json:"wait_p99_ns"`
	FlushP50Ns int64 `json:"flush_p50_ns"`

	Reasons map[string]uint64 `json:"reasons"` // groups by why they went
	Holding bool              `json:"holding"` // the controller waits for clients to return
	Probes  uint64            `json:"probes"`  // comparisons that it has made
	Moves   uint64            `json:"moves"`   // of these, how many changed its setting
}

// Host is a server to which connections may go.
type Host struct {
	Engine  string `json:"engine"`
	Host    string `json:"host"`
	Address string `json:"address"`
	Role    string `json:"role"`
	Term    uint64 `json:"term,omitempty"` // PostgreSQL's timeline
	Current bool   `json:"current"`        // new connections go there
	// Lag of a standby, if known: in time, and in bytes of PostgreSQL's WAL or in
	// transactions of MySQL and MariaDB.
	LagNs  *int64 `json:"lag_ns,omitempty"`
	Behind uint64 `json:"behind,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Statement is one statement shape.
type Statement struct {
	Engine  string `json:"engine"`
	Text    string `json:"text"`
	Verb    string `json:"verb"`
	Runs    uint64 `json:"runs"`
	Grouped uint64 `json:"grouped"` // of the runs
	Errors  uint64 `json:"errors"`
	CostNs  int64  `json:"cost_ns"` // learned, on the server

	Fingerprint string `json:"fingerprint"`
	Shared      uint64 `json:"shared"` // of the runs: beside those of others
	Pinned      uint64 `json:"pinned"` // of the runs: by sessions that keep their connection
	Rows        uint64 `json:"rows"`
	TotalNs     int64  `json:"total_ns"`
	MaxNs       int64  `json:"max_ns"`
	WaitNs      int64  `json:"wait_ns"` // of the total: until the server began
	// PerSecond is the recent rate, filled in for the live page.
	PerSecond float64 `json:"per_second"`
}

// AddStatement adds a statement, to the one with the same text if there is one, as
// several event loops may report it.
func (s *State) AddStatement(st Statement) {
	for i := range s.Statements {
		if have := &s.Statements[i]; have.Text == st.Text && have.Verb == st.Verb && have.Engine == st.Engine {
			have.Runs += st.Runs
			have.Grouped += st.Grouped
			have.Errors += st.Errors
			have.CostNs = max(have.CostNs, st.CostNs)
			have.Shared += st.Shared
			have.Pinned += st.Pinned
			have.Rows += st.Rows
			have.TotalNs += st.TotalNs
			have.MaxNs = max(have.MaxNs, st.MaxNs)
			have.WaitNs += st.WaitNs
			return
		}
	}
	s.Statements = append(s.Statements, st)
}

// complete fills in derived fields.
func (s *State) complete(now time.Time) {
	s.Time = now
	for i := range s.Pools {
		s.Pools[i].LatencyNs = quantiles(s.Pools[i].Latency)
	}
}

// grown returns the increase of a counter. It is 0 for one that has decreased, because
// an object that it counted for was dropped.
func grown(was, is uint64) float64 {
	if is < was {
		return 0
	}
	return float64(is - was)
}

// rateStatements fills in PerSecond from an earlier state.
func rateStatements(before, now *State) {
	seconds := now.Time.Sub(before.Time).Seconds()
	if seconds <= 0 {
		return
	}
	type shape struct{ engine, verb, text string }
	old := make(map[shape]uint64, len(before.Statements))
	for _, st := range before.Statements {
		old[shape{st.Engine, st.Verb, st.Text}] = st.Runs
	}
	for i := range now.Statements {
		st := &now.Statements[i]
		st.PerSecond = grown(old[shape{st.Engine, st.Verb, st.Text}], st.Runs) / seconds
	}
}
