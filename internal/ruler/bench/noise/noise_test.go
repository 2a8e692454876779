package noise

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench"
)

func short(workload string) Config {
	return Config{Workload: workload, Pairs: 9, Slice: 20 * time.Millisecond}
}

func TestEachWorkloadIsMeasuredTwice(t *testing.T) {
	for _, w := range Workloads() {
		t.Run(w.Name, func(t *testing.T) {
			c := short(w.Name)
			c.Workers, c.Dir = 2, t.TempDir()
			r, err := Run(t.Context(), c)
			var missing *lab.NotInstalledError
			if errors.As(err, &missing) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Validate(); err != nil {
				t.Error(err)
			}
			for _, name := range []string{SideA, SideB} {
				k := r.Find(name)
				if k == nil || len(k.Samples) != 9 || k.Summary["rate"].Median <= 0 || k.Summary["errors"].Hi > 0 {
					t.Fatalf("side %s: %+v", name, k)
				}
				if server, ok := k.Samples[0].Processes[bench.RoleServer]; w.Name == "update" && (!ok || server.Processes == 0) {
					t.Error("the server is not watched")
				}
			}
			if floors, err := bench.NoiseFloor(r); err != nil || floors["rate"].Paired <= 0 {
				t.Errorf("floors %v, %v", floors, err)
			}
		})
	}
}

// A side that takes four times as long is told from the other on any machine.
func TestPlantedSlowdownIsFound(t *testing.T) {
	c := short("cpu")
	c.Slower = 3
	c.Pairs = 12
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	k, err := bench.Compare(r.Find(SideA), r.Find(SideB), "p50")
	if err != nil || k.Verdict != bench.Worse {
		t.Errorf("p50: %+v, %v", k, err)
	}
	if _, err := bench.NoiseFloor(r); err == nil {
		t.Error("a run with a planted slowdown passes for one without")
	}
}

// One operation in eight takes twenty times as long, as when something else has
// the processor: what is usual does not follow.
func TestWhatIsUsualIsNearTheMedian(t *testing.T) {
	var usual time.Duration
	for i := range 1000 {
		d := 100 * time.Microsecond
		if i%8 == 7 {
			d *= 20
		}
		usual = settle(usual, d)
	}
	if usual < 85*time.Microsecond || usual > 125*time.Microsecond {
		t.Errorf("usual is %v, want about 100us", usual)
	}
}

func TestInterruptedRunIsPartial(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := short("cpu")
	c.Progress = func(p bench.Progress) {
		if p.Round == 3 {
			cancel()
		}
	}
	r, err := Run(ctx, c)
	if !errors.Is(err, context.Canceled) || r == nil || !r.Partial {
		t.Errorf("result %+v, error %v", r, err)
	}
}

func TestConfigIsRefused(t *testing.T) {
	for want, c := range map[string]Config{
		"workload \"walk\"": {Workload: "walk"},
		"workers":           {Workers: -1},
		"pairs":             {Pairs: 3},
		"turns":             {Slice: time.Microsecond},
		"slower":            {Slower: -0.5},
	} {
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want mention of %q", err, want)
		}
	}
}
