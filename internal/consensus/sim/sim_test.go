package sim

import (
	"flag"
	"os"
	"testing"
)

var (
	replicas = flag.Int("replicas", 0, "with so many replicas")
	tuned    = flag.String("tuned", "", "with the profile of this deliberate bug, without the bug")
	oneSeed  = flag.Int64("seed", -1, "play this seed only, and print its story")
	profile  = flag.String("profile", "", "with this profile of faults")
	preset   = flag.String("preset", "", "with this preset")
	seeds    = flag.Int("seeds", 0, "how many seeds to play")
	from     = flag.Int("from", 1, "the first seed")
)

// chosen is a run as the flags want it.
func chosen(seed uint64) Options {
	o := Options{Profile: *profile, Preset: *preset, Replicas: *replicas}
	for _, b := range bugs() {
		if b.name == *tuned {
			o = b.options
			o.Mutations, o.Defects = 0, Defects{}
		}
	}
	o.Seed = seed
	return o
}

func TestSeed(t *testing.T) {
	if *oneSeed < 0 {
		t.Skip("no -seed given")
	}
	o := chosen(uint64(*oneSeed))
	o.Trace = os.Stdout
	r, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r.Config)
	t.Logf("%+v", r.Stats)
	for _, v := range r.Violations {
		t.Errorf("%v", v)
	}
}

func TestSeeds(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = 100
	}
	bad := 0
	for seed := *from; seed < *from+n; seed++ {
		r, err := Run(chosen(uint64(seed)))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range r.Violations {
			t.Errorf("seed %d %+v: %v", seed, r.Config, v)
		}
		if len(r.Violations) > 0 {
			if bad++; bad > 5 {
				break
			}
		}
	}
}
