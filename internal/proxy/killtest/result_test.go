package killtest_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A pulse counts acknowledged writes, and keeps the longest time without one. The zero
// value is ready. It is safe for concurrent use.
type pulse struct {
	mu      sync.Mutex
	writes  int64         // guarded by mu
	last    time.Time     // guarded by mu
	longest time.Duration // guarded by mu
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.last.IsZero() {
		p.longest = max(p.longest, now.Sub(p.last))
	}
	p.writes, p.last = p.writes+1, now
}

func (p *pulse) count() int64 { p.mu.Lock(); defer p.mu.Unlock(); return p.writes }

// take returns the longest time between two acknowledgements since the last call.
func (p *pulse) take() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	gap := p.longest
	p.longest = 0
	return gap
}

// rest forgets when the last write was, before a time without writes.
func (p *pulse) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.longest = time.Time{}, 0
}

// A result is what one engine's storms came to.
type result struct {
	test, engine string
	faults       map[string]int
	gaps         map[string][]time.Duration // without an acknowledgement, by what happened before
	lanes, errs  map[string]int
	sessions     int64 // logins that succeeded, where they are counted
	verdict      verdict
}

func newResult(test, engine string) *result {
	return &result{
		test: test, engine: engine,
		faults: map[string]int{}, gaps: map[string][]time.Duration{}, lanes: map[string]int{}, errs: map[string]int{},
	}
}

// add adds what a storm has come to, which has ended.
func (r *result) add(s *storm, v *verdict) {
	for kind, n := range s.faults {
		r.faults[kind] += n
	}
	for kind, gaps := range s.gaps {
		r.gaps[kind] = append(r.gaps[kind], gaps...)
	}
	for kind, n := range s.weir.lanes {
		r.lanes[kind] += n
	}
	s.errs.mu.Lock()
	defer s.errs.mu.Unlock()
	for code, n := range s.errs.of {
		r.errs[code] += n
	}
	r.verdict.add(v)
}

var results struct {
	mu  sync.Mutex
	all []*result // guarded by mu
}

// publish writes the results so far into the file that WEIR_KILLS_TABLE names.
func publish(t *testing.T, r *result) {
	t.Helper()
	path := os.Getenv("WEIR_KILLS_TABLE")
	if path == "" {
		return
	}
	results.mu.Lock()
	defer results.mu.Unlock()
	if !slices.Contains(results.all, r) {
		results.all = append(results.all, r)
	}
	if err := os.WriteFile(path, []byte(resultTable(results.all)), 0o644); err != nil {
		t.Error(err)
	}
}

// resultTable has a column for each result and a row for each number.
func resultTable(all []*result) string {
	var b strings.Builder
	row := func(name string, value func(*result) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, r := range all {
			b.WriteString(" " + value(r) + " |")
		}
		b.WriteString("\n")
	}
	row("", func(r *result) string { return r.test + ", " + r.engine })
	b.WriteString("|---|" + strings.Repeat("---:|", len(all)) + "\n")
	for _, kind := range []string{killWeir, killServer, killBoth, promoteKilled, promoteHung, pauseBoth, cut, rollWeir} {
		if slices.ContainsFunc(all, func(r *result) bool { return r.faults[kind] > 0 }) {
			row(kind, func(r *result) string { return fmt.Sprint(r.faults[kind]) })
		}
	}
	if slices.ContainsFunc(all, func(r *result) bool { return r.sessions > 0 }) {
		row("sessions", func(r *result) string { return fmt.Sprint(r.sessions) })
	}
	for _, n := range []struct {
		name string
		of   func(*verdict) int
	}{
		{"**acknowledged writes**", func(v *verdict) int { return v.acked }},
		{"**of them lost**", func(v *verdict) int { return v.lost }},
		{"there twice", func(v *verdict) int { return v.doubled }},
		{"there in halves", func(v *verdict) int { return v.halves }},
		{"refused", func(v *verdict) int { return v.refused }},
		{"refused, and there", func(v *verdict) int { return v.ghosts }},
		{"with other contents, or never written", func(v *verdict) int { return v.wrong }},
		{"own writes not seen, no answer in time", func(v *verdict) int { return v.seen }},
		{"outcome unknown", func(v *verdict) int { return v.unknown }},
		{"of them there", func(v *verdict) int { return v.happened }},
	} {
		row(n.name, func(r *result) string { return fmt.Sprint(n.of(&r.verdict)) })
	}
	row("writes in lanes, at least", func(r *result) string { return counts(r.lanes) })
	row("errors by code", func(r *result) string { return counts(r.errs) })
	for _, kind := range []string{killWeir, killServer, killBoth, promoteKilled, promoteHung, pauseBoth, cut, rollWeir} {
		if !slices.ContainsFunc(all, func(r *result) bool { return len(r.gaps[kind]) > 0 }) {
			continue
		}
		row("longest gap after "+kind+": median, worst", func(r *result) string {
			gaps := slices.Sorted(slices.Values(r.gaps[kind]))
			if len(gaps) == 0 {
				return ""
			}
			return fmt.Sprintf("%.2f s, %.2f s", gaps[len(gaps)/2].Seconds(), gaps[len(gaps)-1].Seconds())
		})
	}
	return b.String()
}

func counts(of map[string]int) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf("%d × %s", of[name], name))
	}
	return strings.Join(all, ", ")
}

func TestPulse(t *testing.T) {
	var p pulse
	p.beat()
	p.last = p.last.Add(-time.Minute)
	p.beat()
	p.beat()
	if gap := p.take(); gap < time.Minute || p.count() != 3 {
		t.Errorf("%d writes, a gap of %v, want 3 and a minute", p.count(), gap)
	}
	if gap := p.take(); gap != 0 {
		t.Errorf("a gap of %v is told twice", gap)
	}
	p.last = p.last.Add(-time.Minute)
	p.rest()
	p.beat()
	if gap := p.take(); gap != 0 {
		t.Errorf("a gap of %v while nobody was to write", gap)
	}
}

func TestResultTable(t *testing.T) {
	a, b := newResult("kills", "x"), newResult("kills", "y")
	a.faults[killWeir], a.gaps[killWeir] = 3, []time.Duration{3 * time.Second, time.Second, 2 * time.Second}
	a.verdict.acked, b.verdict.lost, b.errs["08006"] = 7, 1, 4
	got := resultTable([]*result{a, b})
	for _, want := range []string{
		"|  | kills, x | kills, y |", "| kills of weir | 3 | 0 |", "| **acknowledged writes** | 7 | 0 |",
		"| **of them lost** | 0 | 1 |", "| errors by code |  | 4 × 08006 |", "| longest gap after kills of weir: median, worst | 2.00 s, 3.00 s |  |",
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
}
