package bulk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestPatternsMatchAsInPsql(t *testing.T) {
	for _, c := range []struct {
		pattern, schema, name string
		want                  bool
	}{
		{"orders", "public", "orders", true},
		{"Orders", "public", "orders", true},
		{"Orders", "public", "Orders", false},
		{`"Orders"`, "public", "Orders", true},
		{`"Orders"`, "public", "orders", false},
		{"ord*", "x", "orders", true},
		{"ord?rs", "x", "orders", true},
		{"ord?rs", "x", "ordeers", false},
		{"order", "x", "orders", false},
		{"shop.*", "shop", "orders", true},
		{"shop.*", "shops", "orders", false},
		{`"shop.x".*`, "shop.x", "orders", true},
		{`"a*b"`, "x", "aXb", false},
		{`"a*b"`, "x", "a*b", true},
		{`"quo""te"`, "x", `quo"te`, true},
		{"or[a-d]ers", "x", "orders", true},
		{"or(d|x)ers", "x", "orders", true},
		{"a$b", "x", "a$b", true},
		{`"a b"`, "x", "a b", true},
		{"größe", "x", "größe", true},
		{`"a|b"`, "x", "a", false},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		if got := p.Match(c.schema, c.name); got != c.want {
			t.Errorf("%s matches %s.%s: %v", c.pattern, c.schema, c.name, got)
		}
	}
	for _, bad := range []string{"", `"open`, "a.b.c", "a(", "[z-a]"} {
		if _, err := ParsePattern(bad); err == nil {
			t.Errorf("pattern %q is accepted", bad)
		}
	}
	if _, err := (Filter{ExcludeTables: []string{"a("}}).Compile(); err == nil || !strings.Contains(err.Error(), "--exclude-table") {
		t.Errorf("error does not name the flag: %v", err)
	}
}

func TestFiltersCombineAsInPgDump(t *testing.T) {
	for _, c := range []struct {
		filter Filter
		want   string
	}{
		{Filter{}, "a.t a.u b.t"},
		{Filter{Schemas: []string{"a"}}, "a.t a.u"},
		{Filter{ExcludeSchemas: []string{"a"}}, "b.t"},
		{Filter{Tables: []string{"t"}}, "a.t b.t"},
		{Filter{Schemas: []string{"b"}, Tables: []string{"a.u"}}, "a.u"},
		{Filter{Schemas: []string{"a"}, ExcludeTables: []string{"*.u"}}, "a.t"},
	} {
		m, err := c.filter.Compile()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range [][2]string{{"a", "t"}, {"a", "u"}, {"b", "t"}} {
			if m.Table(n[0], n[1]) {
				got = append(got, n[0]+"."+n[1])
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%+v: %q, want %q", c.filter, s, c.want)
		}
	}
}

func TestProfilesFitTheMachine(t *testing.T) {
	for _, c := range []struct {
		machine Machine
		name    string
		want    string
		jobs    int
	}{
		{Machine{1, 64 << 30}, "", "conservative", 1},
		{Machine{2, 512 << 20}, "", "conservative", 1},
		{Machine{2, 24 << 30}, "auto", "balanced", 2},
		{Machine{8, 32 << 30}, "", "performance", 4},
		{Machine{64, 256 << 30}, "", "max-performance", 8},
		{Machine{2, 24 << 30}, "turbo", "turbo", 4},
		{Machine{32, 24 << 30}, "turbo", "turbo", 8},
	} {
		p, err := ProfileNamed(c.name, c.machine)
		if err != nil || p.Name != c.want || p.Jobs != c.jobs {
			t.Errorf("%+v %q: %+v, %v", c.machine, c.name, p, err)
		}
	}
	if _, err := ProfileNamed("fast", ThisMachine()); err == nil || !strings.Contains(err.Error(), "turbo") {
		t.Errorf("an unknown profile: %v", err)
	}
	p := Recommend(Machine{2, 24 << 30})
	if got := p.MaintenanceBytes(Machine{2, 24 << 30}, 2); got != 3<<29 { // an eighth of 24 GiB, halved
		t.Errorf("memory for an index build: %d", got)
	}
	if got := p.MaintenanceBytes(Machine{}, 2); got != 16<<20 {
		t.Errorf("memory for an index build on an unknown machine: %d", got)
	}
}

// TestGraphKeepsItsPromises runs random graphs and looks at what ran when.
func TestGraphKeepsItsPromises(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var mu sync.Mutex
		ended := map[string]bool{}
		held := map[string]int{} // how many share it; -1: one has it alone
		running := 0
		workers := 1 + rnd.IntN(4)
		var jobs []Job
		for i := range 1 + rnd.IntN(40) {
			j := Job{ID: fmt.Sprint(i), Rank: rnd.IntN(3), Size: rnd.Int64N(5)}
			for range rnd.IntN(3) {
				if i > 0 {
					j.After = append(j.After, fmt.Sprint(rnd.IntN(i)))
				}
			}
			for range rnd.IntN(3) {
				l := fmt.Sprint("lock", rnd.IntN(4))
				switch {
				case slices.Contains(j.Locks, l), slices.Contains(j.Shared, l):
				case rnd.IntN(2) == 0:
					j.Shared = append(j.Shared, l)
				default:
					j.Locks = append(j.Locks, l)
				}
			}
			j.After = append(j.After, "done long ago")
			j.Do = func(_ context.Context, w int) error {
				mu.Lock()
				if running++; running > workers || w >= workers {
					t.Errorf("job %s is number %d of %d, by worker %d", j.ID, running, workers, w)
				}
				for _, a := range j.After {
					if !ended[a] && a != "done long ago" {
						t.Errorf("job %s ran before %s", j.ID, a)
					}
				}
				for _, l := range j.Locks {
					if held[l] != 0 {
						t.Errorf("job %s ran while %s was held", j.ID, l)
					}
					held[l] = -1
				}
				for _, l := range j.Shared {
					if held[l]++; held[l] <= 0 {
						t.Errorf("job %s ran while another one had %s alone", j.ID, l)
					}
				}
				mu.Unlock()
				mu.Lock()
				defer mu.Unlock()
				for _, l := range j.Locks {
					held[l] = 0
				}
				for _, l := range j.Shared {
					held[l]--
				}
				running--
				ended[j.ID] = true
				return nil
			}
			jobs = append(jobs, j)
		}
		rnd.Shuffle(len(jobs), func(a, b int) { jobs[a], jobs[b] = jobs[b], jobs[a] })
		if err := Run(t.Context(), workers, jobs); err != nil {
			t.Fatal(err)
		}
		if len(ended) != len(jobs) {
			t.Errorf("%d of %d jobs ran", len(ended), len(jobs))
		}
	}
}

// TestGraphOfOneLock runs as many jobs as a database of tables that all refer to
// one has foreign keys. Were each of them looked at each time, this would not end.
func TestGraphOfOneLock(t *testing.T) {
	ran := 0
	jobs := make([]Job, 50_000)
	for i := range jobs {
		jobs[i] = Job{ID: fmt.Sprint(i), Locks: []string{"tenant", fmt.Sprint("own", i%1000)}, Do: func(context.Context, int) error {
			ran++ // the lock guards it
			return nil
		}}
	}
	if err := Run(t.Context(), 3, jobs); err != nil {
		t.Fatal(err)
	}
	if ran != len(jobs) {
		t.Errorf("%d of %d jobs ran", ran, len(jobs))
	}
}

// TestGraphShares runs two jobs that share a lock side by side, and one that wants it
// alone after both of them: none of them waits for what it need not wait for.
func TestGraphShares(t *testing.T) {
	both, alone := make(chan struct{}), 0
	share := func(me, other chan struct{}) func(ctx context.Context, _ int) error {
		return func(ctx context.Context, _ int) error {
			close(me)
			select {
			case <-other:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	second := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var order []string
	err := Run(ctx, 2, []Job{
		{ID: "first", Locks: []string{"table"}, Size: 9, Do: func(context.Context, int) error { return nil }},
		{ID: "a", Shared: []string{"table"}, Do: share(both, second)},
		{ID: "b", Shared: []string{"table"}, Do: share(second, both)},
		{ID: "alone", Locks: []string{"table"}, After: []string{"first"}, Do: func(context.Context, int) error {
			alone++
			return nil
		}},
		{ID: "last", After: []string{"a", "b", "alone"}, Do: func(context.Context, int) error {
			order = append(order, "last")
			return nil
		}},
	})
	if err != nil || alone != 1 || len(order) != 1 {
		t.Errorf("%v; the lock was held alone %d times", err, alone)
	}
}

// TestGraphStartsTheLongestWayFirst has a small job go before larger ones, for most of
// the work waits for it.
func TestGraphStartsTheLongestWayFirst(t *testing.T) {
	var order []string
	job := func(id string, size int64, after ...string) Job {
		return Job{ID: id, Size: size, After: after, Do: func(context.Context, int) error {
			order = append(order, id)
			return nil
		}}
	}
	jobs := []Job{job("large", 10), job("key", 1), job("reference", 5, "key", "middle"), job("check", 7, "reference"), job("middle", 2)}
	if err := Run(t.Context(), 1, jobs); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, " "); got != "middle key reference large check" {
		t.Errorf("order: %s", got)
	}
}

func TestGraphStartsTheLargestFirst(t *testing.T) {
	var order []string
	job := func(id string, rank int, size int64) Job {
		return Job{ID: id, Rank: rank, Size: size, Do: func(context.Context, int) error {
			order = append(order, id)
			return nil
		}}
	}
	jobs := []Job{job("index", 1, 100), job("small", 0, 1), job("big", 0, 10), job("middle", 0, 5)}
	if err := Run(t.Context(), 1, jobs); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, " "); got != "big middle small index" {
		t.Errorf("order: %s", got)
	}
}

func TestGraphEndsAtAnError(t *testing.T) {
	broken := errors.New("broken")
	started := make(chan struct{})
	err := Run(t.Context(), 2, []Job{
		{ID: "waits", Do: func(ctx context.Context, _ int) error {
			close(started)
			<-ctx.Done()
			return ctx.Err()
		}},
		{ID: "breaks", Do: func(context.Context, int) error {
			<-started
			return broken
		}},
		{ID: "never", After: []string{"breaks"}, Do: func(context.Context, int) error {
			t.Error("a job ran after an error")
			return nil
		}},
	})
	if !errors.Is(err, broken) {
		t.Errorf("error: %v", err)
	}
	circle := []Job{{ID: "a", After: []string{"b"}}, {ID: "b", After: []string{"a"}}}
	if err := Run(t.Context(), 1, circle); err == nil || !strings.Contains(err.Error(), "waits for itself") {
		t.Errorf("a circle: %v", err)
	}
	if err := Run(t.Context(), 1, []Job{{ID: "a"}, {ID: "a"}}); err == nil {
		t.Error("two jobs of one name are accepted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, 1, []Job{{ID: "a"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	if err := Run(t.Context(), 4, nil); err != nil {
		t.Errorf("nothing to do: %v", err)
	}
}

func TestProgressTellsWhatIsLeft(t *testing.T) {
	var p Progress
	p.Phase("data")
	p.Expect(100, 2)
	end := p.Begin("a")
	p.Begin("b")
	p.Add(25, 7)
	end()
	s := p.Snapshot()
	if s.Phase != "data" || s.Bytes != 25 || s.TotalBytes != 100 || s.Rows != 7 || s.Steps != 1 || s.TotalSteps != 2 || !slices.Equal(s.Active, []string{"b"}) {
		t.Errorf("snapshot: %+v", s)
	}
	s.Elapsed = time.Second
	if s.Rate() != 25 || s.Left() != 3*time.Second {
		t.Errorf("rate %v, left %v", s.Rate(), s.Left())
	}
	var none *Progress
	none.Phase("x")
	none.Add(1, 1)
	none.Begin("x")()
	if s := none.Snapshot(); s.Phase != "" {
		t.Errorf("no progress: %+v", s)
	}
}
