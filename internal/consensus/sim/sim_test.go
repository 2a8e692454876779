package sim

import (
	"flag"
	"os"
	"testing"
)

var (
	oneSeed = flag.Int64("seed", -1, "play this seed only, and print its story")
	profile = flag.String("profile", "", "with this profile of faults")
	preset  = flag.String("preset", "", "with this preset")
	seeds   = flag.Int("seeds", 0, "how many seeds to play")
	from    = flag.Int("from", 1, "the first seed")
)

func TestSeed(t *testing.T) {
	if *oneSeed < 0 {
		t.Skip("no -seed given")
	}
	r, err := Run(Options{Seed: uint64(*oneSeed), Profile: *profile, Preset: *preset, Trace: os.Stdout})
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
		r, err := Run(Options{Seed: uint64(seed), Profile: *profile, Preset: *preset})
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
