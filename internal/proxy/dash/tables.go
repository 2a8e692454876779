package dash

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/admin/live"
)

const (
	// maxStatements and maxLanes bound the rows of tables.
	maxStatements = 40
	maxLanes      = 25
	// rateStates is the number of states over which the rate of a statement is taken.
	rateStates = 4
	// lagging is the lag from which a standby is red.
	lagging = 30 * time.Second
	// stale is the age from which a state is too old for the current rate.
	stale = 10 * time.Second
)

// Detail implements live.Source.
func (p *panels) Detail(ctx context.Context) (live.Detail, error) {
	state, err := p.source.State(ctx)
	if err != nil {
		return live.Detail{}, err
	}
	state.complete(time.Now())
	p.recent = slices.DeleteFunc(p.recent, func(old *State) bool { return state.Time.Sub(old.Time) > stale })
	if len(p.recent) > 0 {
		rateStatements(p.recent[0], &state)
	}
	p.recent = append(p.recent, &state)
	p.recent = p.recent[max(0, len(p.recent)-rateStates):]

	v := view{state: &state, both: len(state.Sides) > 1}
	out := live.Detail{Facts: v.facts(), Tables: []live.Table{v.statements(), v.pools(), v.lanes(), v.cache()}}
	if len(state.Hosts) > 0 {
		out.Tables = append(out.Tables, v.hosts())
	}
	out.Tables = append(out.Tables, v.pins(), v.totals())
	if err := p.source.Ready(ctx); err != nil {
		out.Problems = []string{"Not ready: " + err.Error()}
	}
	return out, nil
}

// view returns the tables of one state.
type view struct {
	state *State
	both  bool // sides: each row says whose it is
}

func (v view) facts() []string {
	var out []string
	for _, s := range v.state.Sides {
		fact := s.Listen + " → " + s.Server
		if v.both {
			fact = s.Title + " " + fact
		}
		out = append(out, fact)
	}
	return append(out, "weir "+v.state.Version, "up "+live.Age(time.Duration(v.state.UptimeSeconds*float64(time.Second))))
}

// columns and row prepend the side if there are two.
func (v view) columns(names ...string) []live.Column {
	if v.both {
		names = append([]string{":Side"}, names...)
	}
	return live.Columns(names...)
}

func (v view) row(engine string, cells ...live.Cell) []live.Cell {
	if !v.both {
		return cells
	}
	title := engine
	for _, s := range v.state.Sides {
		if s.Engine == engine {
			title = s.Title
		}
	}
	return append([]live.Cell{live.Text(title)}, cells...)
}

// statements shows the statements that currently run most often, and those that took most
// time.
func (v view) statements() live.Table {
	t := live.Table{
		Title: "Statements", Wide: true, Empty: "No statement yet.",
		Columns: v.columns("/s", "runs", "time", "mean", "slowest", "waiting", "shared", "grouped", "rows", "errors", ":Statement"),
	}
	list := slices.Clone(v.state.Statements)
	slices.SortStableFunc(list, func(a, b Statement) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(b.Runs, a.Runs))
	})
	if len(list) > maxStatements {
		rest := list[maxStatements/2:]
		slices.SortStableFunc(rest, func(a, b Statement) int { return cmp.Compare(b.TotalNs, a.TotalNs) })
		list = list[:maxStatements]
	}
	for _, st := range list {
		runs := float64(st.Runs)
		t.Rows = append(t.Rows, v.row(st.Engine,
			live.Number(st.PerSecond), live.Number(st.Runs), live.Duration(time.Duration(st.TotalNs)),
			live.Duration(time.Duration(float64(st.TotalNs)/max(1, runs))), live.Duration(time.Duration(st.MaxNs)),
			live.Percentage(float64(st.WaitNs), float64(st.TotalNs)), live.Percentage(float64(st.Shared), runs), live.Percentage(float64(st.Grouped), runs),
			live.Number(st.Rows), live.Number(st.Errors).Alarm(st.Errors > 0), live.Code(st.Text)))
	}
	return t
}

// cache shows the contents and counters of the cache.
func (v view) cache() live.Table {
	c := &v.state.Cache
	t := live.Table{Title: "Cache", Empty: "No statement with the hint ttl yet.", Columns: live.Columns("answers", "size", "fresh", "old", "fetched", "waited", "hits", "not cached", "evicted")}
	if asked := c.Hits + c.Stale + c.Misses + c.Shared; asked+c.Skipped > 0 {
		t.Rows = [][]live.Cell{{
			live.Number(uint64(max(0, c.Entries))), live.Size(uint64(max(0, c.Bytes))), live.Number(c.Hits), live.Number(c.Stale), live.Number(c.Misses), live.Number(c.Shared),
			live.Percentage(float64(c.Hits+c.Stale), float64(max(1, asked))), live.Number(c.Skipped), live.Number(c.Evicted),
		}}
	}
	return t
}

func (v view) pools() live.Table {
	t := live.Table{
		Title: "Pools", Wide: true, Empty: "No client has logged in yet.",
		Columns: v.columns(":Database", ":User", "clients", "active", "pinned", "waiting", "oldest", "connections", "size", "free", "shared", "one client's", "groups", "p50", "p95", "p99", "errors", "timeouts"),
	}
	for i := range v.state.Pools {
		p := &v.state.Pools[i]
		b := p.Backends
		t.Rows = append(t.Rows, v.row(p.Engine,
			live.Text(p.Database), live.Text(p.User), live.Number(p.Clients), live.Number(p.Active), live.Number(p.Pinned),
			live.Number(p.Waiting), live.Duration(time.Duration(p.OldestWaitNs)).Alarm(p.OldestWaitNs > int64(time.Second)),
			live.Number(b.Free+b.Shared+b.Owned+b.Laned), live.Number(p.Size), live.Number(b.Free), live.Number(b.Shared), live.Number(b.Owned), live.Number(b.Laned),
			live.Duration(time.Duration(p.LatencyNs.P50)), live.Duration(time.Duration(p.LatencyNs.P95)), live.Duration(time.Duration(p.LatencyNs.P99)),
			live.Number(p.Errors), live.Number(p.Timeouts).Alarm(p.Timeouts > 0)))
	}
	return t
}

// lanes shows what the batcher of each lane has decided, and why.
func (v view) lanes() live.Table {
	t := live.Table{
		Title: "Write lanes", Wide: true,
		Empty:   "No write asked for a group yet: put /* batch */ in front of one, or start weir with --batch auto.",
		Columns: v.columns(":Kind", ":Window", "groups", "mean size", "largest", "in flight", "allowed", "queued", "wait p50", "wait p99", "flush p50", "run apart", ":Went because", ":Controller", ":Statement"),
	}
	lanes := slices.Clone(v.state.Lanes)
	slices.SortStableFunc(lanes, func(a, b Lane) int { return cmp.Compare(b.Members, a.Members) })
	for _, l := range lanes[:min(len(lanes), maxLanes)] {
		window := "adaptive"
		if l.WindowNs > 0 {
			window = time.Duration(l.WindowNs).String()
		}
		t.Rows = append(t.Rows, v.row(l.Engine,
			live.Text(l.Kind), live.Text(window), live.Number(l.Groups), live.Number(float64(l.Members)/float64(max(1, l.Groups))), live.Number(l.SizeMax),
			live.Number(l.InFlight), live.Number(l.Allowed), live.Number(l.Waiting),
			live.Duration(time.Duration(l.WaitP50Ns)), live.Duration(time.Duration(l.WaitP99Ns)), live.Duration(time.Duration(l.FlushP50Ns)),
			live.Number(l.Fallbacks), live.Text(because(l.Reasons)), live.Text(controller(&l)), live.Code(l.Text)))
	}
	return t
}

// reasons describe the reasons of package batch.
var reasons = map[string]string{
	"idle": "a lane was free", "items": "full", "bytes": "full by bytes", "window": "window over", "max-wait": "longest wait over", "close": "closing",
}

// because lists the reasons for which groups were sent, the most frequent first.
func because(by map[string]uint64) string {
	var sum uint64
	for _, n := range by {
		sum += n
	}
	var out []string
	for _, why := range slices.SortedStableFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b)) }) {
		if n := by[why]; n > 0 {
			out = append(out, fmt.Sprintf("%s %.0f %%", cmp.Or(reasons[why], why), 100*float64(n)/float64(sum)))
		}
	}
	return strings.Join(out, ", ")
}

// controller describes the state of the controller of groups in flight.
func controller(l *Lane) string {
	if l.WindowNs > 0 {
		return "fixed"
	}
	out := fmt.Sprintf("%d of %d probes moved it", l.Moves, l.Probes)
	if l.Holding {
		out += ", waits for clients to return"
	}
	return out
}

func (v view) hosts() live.Table {
	t := live.Table{Title: "Hosts", Wide: true, Columns: v.columns(":Host", ":Address", ":Role", "lag", "behind", ":New connections", "timeline", ":Error")}
	n := len(t.Columns)
	t.Columns[n-5].Help = "since when a standby has lacked something that the primary has"
	t.Columns[n-4].Help = "bytes of PostgreSQL's log, transactions of MySQL and MariaDB"

	for _, h := range v.state.Hosts {
		current := ""
		if h.Current {
			current = "go here"
		}
		timeline := live.Text("")
		if h.Term > 0 {
			timeline = live.Number(h.Term)
		}
		lag, behind := live.Text(""), live.Text("")
		if h.LagNs != nil {
			lag = live.Cell{Value: time.Duration(*h.LagNs).Seconds(), Format: live.Seconds}.Alarm(*h.LagNs > int64(lagging))
			if behind = live.Number(h.Behind); h.Engine == "postgresql" {
				behind = live.Size(h.Behind)
			}
		}
		t.Rows = append(t.Rows, v.row(h.Engine, live.Text(h.Host), live.Text(h.Address), live.Text(h.Role), lag, behind, live.Text(current), timeline, live.Text(h.Error).Alarm(h.Error != "")))
	}
	return t
}

func (v view) pins() live.Table {
	t := live.Table{Title: "Pins by cause", Empty: "No session needed a connection of its own.", Columns: live.Columns(":Cause", "pins", "")}
	causes := make(map[string]uint64)
	for i := range v.state.Pools {
		for cause, n := range v.state.Pools[i].Pins {
			causes[cause] += n
		}
	}
	var most uint64 = 1
	for _, n := range causes {
		most = max(most, n)
	}
	for _, cause := range slices.SortedFunc(maps.Keys(causes), func(a, b string) int { return cmp.Or(cmp.Compare(causes[b], causes[a]), cmp.Compare(a, b)) }) {
		t.Rows = append(t.Rows, []live.Cell{live.Text(strings.ReplaceAll(cause, "_", " ")), live.Number(causes[cause]), live.Bar(float64(causes[cause]) / float64(most))})
	}
	return t
}

func (v view) totals() live.Table {
	t := live.Table{Title: "Since the start", Columns: live.Columns(":", "")}
	sum := func(of func(*Pool) uint64) (n uint64) {
		for i := range v.state.Pools {
			n += of(&v.state.Pools[i])
		}
		return n
	}
	limits := make(map[string]uint64)
	for i := range v.state.Pools {
		for limit, n := range v.state.Pools[i].Limited {
			limits[limit] += n
		}
	}
	s := v.state
	add := func(what string, c live.Cell) { t.Rows = append(t.Rows, []live.Cell{live.Text(what), c}) }
	add("logins", live.Number(s.Logins.Accepted))
	add("logins failed", live.Number(s.Logins.Failed).Alarm(s.Logins.Failed > 0))
	add("logins refused", live.Number(s.Logins.Refused).Alarm(s.Logins.Refused > 0))
	add("statements shared", live.Number(sum(func(p *Pool) uint64 { return p.Shared })))
	add("statements grouped", live.Number(sum(func(p *Pool) uint64 { return p.Grouped })))
	add("statements alone", live.Number(sum(func(p *Pool) uint64 { return p.Alone })))
	add("statements cached", live.Number(sum(func(p *Pool) uint64 { return p.Cached })))
	add("errors of the server", live.Number(sum(func(p *Pool) uint64 { return p.Errors })))
	add("queue timeouts", live.Number(sum(func(p *Pool) uint64 { return p.Timeouts })))
	for _, limit := range slices.Sorted(maps.Keys(limits)) {
		add("limit: "+strings.ReplaceAll(limit, "_", " "), live.Number(limits[limit]))
	}
	add("run again apart", live.Number(sum(func(p *Pool) uint64 { return p.Reruns })))
	add("settings replayed", live.Number(sum(func(p *Pool) uint64 { return p.Replays })))
	add("hints not understood", live.Number(s.BadHints))
	add("protocol errors", live.Number(s.ProtocolErrors))
	add("bytes in", live.Size(s.BytesIn))
	add("bytes out", live.Size(s.BytesOut))
	return t
}
