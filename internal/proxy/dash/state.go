package dash

import (
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// State is what the page shows of a proxy at one moment. Counters count since
// the start. It is the body of /snapshot.json: fields may be added, and none is
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

	Pools      []Pool      `json:"pools"`
	Lanes      []Lane      `json:"lanes"`
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

// Logins counts clients by how their login ended.
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

	Errors   uint64            `json:"errors"`
	Timeouts uint64            `json:"timeouts"`
	Reruns   uint64            `json:"reruns"`
	Replays  uint64            `json:"replays"`
	Pins     map[string]uint64 `json:"pins"` // by cause

	// Latency, in ns from the complete message of a client to its answer, is
	// rendered as LatencyNs.
	Latency   *measure.Hist `json:"-"`
	LatencyNs Quantiles     `json:"latency_ns"` // since the start
}

// Backends counts server connections by what they do.
type Backends struct {
	Free       int `json:"free"`
	Shared     int `json:"shared"` // pipeline reads of several clients
	Owned      int `json:"owned"`  // serve one client
	Laned      int `json:"laned"`  // run a group
	Connecting int `json:"connecting"`
}

// Quantiles sums up a histogram.
type Quantiles struct {
	Count uint64 `json:"count"`
	P50   int64  `json:"p50"`
	P90   int64  `json:"p90"`
	P99   int64  `json:"p99"`
	Max   int64  `json:"max"`
}

func quantiles(h *measure.Hist) Quantiles {
	if h == nil {
		return Quantiles{}
	}
	return Quantiles{Count: h.Count(), P50: h.Quantile(0.5), P90: h.Quantile(0.9), P99: h.Quantile(0.99), Max: h.Max()}
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
	// PerSecond is the recent rate, filled in by the sampler.
	PerSecond float64 `json:"per_second"`
}

// AddStatement adds a statement; one with the text of another, as several event
// loops report it, is added to that.
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

// complete fills in what is derived.
func (s *State) complete(now time.Time) {
	s.Time = now
	for i := range s.Pools {
		s.Pools[i].LatencyNs = quantiles(s.Pools[i].Latency)
	}
}

// Point is one sample of the charts: levels at its time, and rates and
// quantiles over the interval before.
type Point struct {
	UnixMs int64 `json:"t"`

	Shared  float64 `json:"shared"` // statements/s by path
	Grouped float64 `json:"grouped"`
	Alone   float64 `json:"alone"`
	Errors  float64 `json:"errors"` // per second

	P50Ms float64 `json:"p50"`
	P99Ms float64 `json:"p99"`

	Clients  int      `json:"clients"`
	Active   int      `json:"active"`
	Waiting  int      `json:"waiting"`
	Pinned   int      `json:"pinned"`
	Backends Backends `json:"backends"`

	GroupSize float64 `json:"group_size"` // mean of the groups that ended
	InFlight  int     `json:"in_flight"`
	Allowed   int     `json:"allowed"`
	Queued    int     `json:"queued"` // statements that wait in lanes

	BusyShare float64 `json:"busy"` // of the event loops' time, 0 to 1
	BytesIn   float64 `json:"bytes_in"`
	BytesOut  float64 `json:"bytes_out"`
}

// between derives the point of now from the sample before it.
func between(before, now *State) Point {
	p := Point{UnixMs: now.Time.UnixMilli(), Clients: now.Clients}
	seconds := now.Time.Sub(before.Time).Seconds()
	rate := func(was, is uint64) float64 { return grown(was, is) / seconds }
	was := totals(before)
	is := totals(now)
	p.Shared, p.Grouped = rate(was.shared, is.shared), rate(was.grouped, is.grouped)
	p.Alone, p.Errors = rate(was.alone, is.alone), rate(was.errors, is.errors)
	p.BytesIn, p.BytesOut = rate(before.BytesIn, now.BytesIn), rate(before.BytesOut, now.BytesOut)
	p.BusyShare = min(1, max(0, now.BusySeconds-before.BusySeconds)/seconds/float64(max(1, now.Loops)))
	recent := since(&was.latency, &is.latency)
	p.P50Ms, p.P99Ms = float64(recent.Quantile(0.5))/1e6, float64(recent.Quantile(0.99))/1e6
	for i := range now.Pools {
		pool := &now.Pools[i]
		p.Active += pool.Active
		p.Waiting += pool.Waiting
		p.Pinned += pool.Pinned
		p.Backends.Free += pool.Backends.Free
		p.Backends.Shared += pool.Backends.Shared
		p.Backends.Owned += pool.Backends.Owned
		p.Backends.Laned += pool.Backends.Laned
		p.Backends.Connecting += pool.Backends.Connecting
	}
	for i := range now.Lanes {
		p.InFlight += now.Lanes[i].InFlight
		p.Allowed += now.Lanes[i].Allowed
		p.Queued += now.Lanes[i].Waiting
	}
	if groups := grown(was.groups, is.groups); groups > 0 {
		p.GroupSize = grown(was.members, is.members) / groups
	}
	return p
}

// grown is by how much a counter grew. One that shrank, because what it counted
// in was dropped, grew by nothing that is known.
func grown(was, is uint64) float64 {
	if is < was {
		return 0
	}
	return float64(is - was)
}

type sums struct {
	shared, grouped, alone, errors, groups, members uint64
	latency                                         measure.Hist
}

func totals(s *State) *sums {
	t := &sums{}
	for i := range s.Pools {
		p := &s.Pools[i]
		t.shared += p.Shared
		t.grouped += p.Grouped
		t.alone += p.Alone
		t.errors += p.Errors
		t.latency.Merge(p.Latency)
	}
	for i := range s.Lanes {
		t.groups += s.Lanes[i].Groups
		t.members += s.Lanes[i].Members
	}
	return t
}

// since is the histogram of what was recorded between two states of one
// histogram, each value moved to the middle of its bucket.
func since(was, is *measure.Hist) measure.Hist {
	old := make(map[int64]uint64)
	for _, b := range was.Buckets() {
		old[b.LowNs] = b.Count
	}
	var out measure.Hist
	for _, b := range is.Buckets() {
		if n := b.Count - min(b.Count, old[b.LowNs]); n > 0 {
			out.RecordN(b.LowNs+(b.HighNs-b.LowNs)/2, n)
		}
	}
	return out
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
