package sim

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/testkit"
)

var (
	oneSeed  = flag.Int64("seed", -1, "play this seed only, and print its story")
	profile  = flag.String("profile", "", "with this profile of faults")
	preset   = flag.String("preset", "", "with this preset")
	replicas = flag.Int("replicas", 0, "with so many replicas")
	bugged   = flag.Bool("bugged", false, "with -like: with the bug")
	like     = flag.String("like", "", "as the runs that show this deliberate bug, but without it")
	seeds    = flag.Int("seeds", 0, "how many seeds to play")
	from     = flag.Uint64("from", 1, "the first seed")
)

// chosen returns the options that the flags select.
func chosen() Options {
	o := Options{Profile: *profile, Preset: *preset, Replicas: *replicas}
	for _, b := range bugs() {
		if b.name == *like {
			o = b.options
			if !*bugged {
				o.Mutations, o.Defects = 0, Defects{}
			}
		}
	}
	return o
}

func TestSeed(t *testing.T) {
	if *oneSeed < 0 {
		t.Skip("for a person who looks into a seed: -seed N")
	}
	o := chosen()
	o.Seed, o.Trace = uint64(*oneSeed), os.Stdout
	r, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v\n%+v", r.Config, r.Stats)
	for _, v := range r.Violations {
		t.Errorf("%v", v)
	}
}

// TestSeeds plays seeds that were not chosen for anything.
func TestSeeds(t *testing.T) {
	n := *seeds
	switch {
	case n > 0:
	case raceEnabled: // a run is of one thread: `make test` plays more without the detector
		n = 10
	case testing.Short():
		n = 20
	default:
		n = 150 // `make torture` plays more
	}
	c := Campaign{Options: chosen(), From: *from, Seeds: n, Workers: runtime.GOMAXPROCS(0), Failures: 3}
	totals, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range totals.Failures {
		fail(t, c.optionsOf(totals.Failures[i].Seed), &totals.Failures[i])
	}
	s := &totals.Stats
	t.Logf("%d seeds, %v of virtual time, %d operations (%d fast), %d messages, %d histories, %d undecided", totals.Seeds, s.Virtual, s.Operations, s.Fast, s.Messages, s.Keys, s.Undecided)
	if s.Undecided*20 > s.Keys && s.Keys > 100 {
		t.Errorf("the linearizability checker gave up %d of %d histories: make them smaller", s.Undecided, s.Keys)
	}
	if n >= 300 {
		everyFaultHappened(t, s)
	}
}

// everyFaultHappened checks that the runs had every kind of fault.
func everyFaultHappened(t *testing.T, s *Stats) {
	t.Helper()
	for _, c := range s.Faults.Counts() {
		if c.Times == 0 {
			t.Errorf("no fault of the kind %s happened", c.Name)
		}
	}
	for name, n := range map[string]uint64{"fast operation": s.Fast, "snapshot": s.Snapshots, "shipped snapshot": s.Ships, "expired session": s.Expired, "ended session": s.Ended} {
		if n == 0 {
			t.Errorf("not one %s", name)
		}
	}
}

// fail reports a run with a violation, and the end of its trace.
func fail(t *testing.T, o Options, r *Result) {
	t.Helper()
	tail, err := Replay(o, 60)
	if err != nil {
		t.Fatal(err)
	}
	var story strings.Builder
	if _, err := tail.WriteTo(&story); err != nil {
		t.Fatal(err)
	}
	t.Errorf("seed %d violates a guarantee: %v\nto repeat it: %s\n%s", r.Seed, r.Violations[0], r.Command(), story.String())
}

// TestSeedsThatFoundSomething runs the seeds in testdata/seeds.txt.
func TestSeedsThatFoundSomething(t *testing.T) {
	file, err := os.Open("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}()
	played := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		var o Options
		if _, err := fmt.Sscan(line, &o.Seed, &o.Profile, &o.Preset, &o.Replicas); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		o.Preset, o.Profile = strings.Trim(o.Preset, "-"), strings.Trim(o.Profile, "-")
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Violations) > 0 {
			fail(t, o, &r)
		}
		played++
	}
	if played == 0 {
		t.Error("no seed in the file")
	}
}

// TestSameSeedSameRun runs seeds twice, the second time with a trace.
func TestSameSeedSameRun(t *testing.T) {
	testkit.Alone(t)
	hashes := map[uint64]bool{}
	n := 30
	if testing.Short() {
		n = 5
	}
	for seed := range uint64(n) {
		one, err := Run(Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		two, err := Run(Options{Seed: seed, Trace: &Tail{Lines: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if one.Hash != two.Hash {
			t.Errorf("seed %d: %016x, then %016x", seed, one.Hash, two.Hash)
		}
		hashes[one.Hash] = true
	}
	if len(hashes) != n {
		t.Errorf("%d seeds gave %d different runs", n, len(hashes))
	}
}

// TestRunRefusesNonsense checks the errors for invalid options.
func TestRunRefusesNonsense(t *testing.T) {
	for want, o := range map[string]Options{
		`profile "x"`: {Profile: "x"},
		`preset "y"`:  {Preset: "y"},
	} {
		if _, err := Run(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
}

// Replay runs the seed of a failed run again and returns its trace.
func Replay(o Options, lines int) (*Tail, error) {
	tail := &Tail{Lines: lines}
	o.Trace = tail
	_, err := Run(o)
	return tail, err
}
