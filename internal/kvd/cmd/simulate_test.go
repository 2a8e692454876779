package kvcmd

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/consensus/sim"
)

func TestSimulatePlaysSeeds(t *testing.T) {
	out := program.Run(t, "kv", "simulate", "--seeds", "6", "--replicas", "3,5", "--profile", "crash,views", "--workers", "2")
	for _, want := range []string{"6 seeds in ", "up to seed 6\n", "faults ", "no promise was broken\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s\nwant %q", out, want)
		}
	}
	var totals sim.Totals
	if out := program.Run(t, "kv", "simulate", "--seeds", "3", "--json"); json.Unmarshal([]byte(out), &totals) != nil || totals.Seeds != 3 {
		t.Errorf("%s", out)
	}
}

func TestSimulateTellsOneSeed(t *testing.T) {
	one := program.Run(t, "kv", "simulate", "--seed", "5", "--profile", "calm")
	story := program.Run(t, "kv", "simulate", "--seed", "5", "--profile", "calm", "--trace")
	if !strings.Contains(story, "commit ") || !strings.HasSuffix(story, one) {
		t.Errorf("the trace does not end with the summary of the same run:\n%s", one)
	}
}

func TestSimulateFailsWithTheSeed(t *testing.T) {
	r := sim.Result{Seed: 7, Config: sim.Config{Replicas: 3, Preset: "curp", Profile: "crash", SessionIdle: time.Hour}, Violations: []sim.Violation{{Check: "lost", Text: "x"}}}
	err := verdict([]sim.Result{{}, r})
	if cli.ExitCode(err) != cli.ExitShortfall || !strings.Contains(err.Error(), "weir kv simulate --seed 7 --replicas 3 --preset curp --profile crash --trace") {
		t.Errorf("%v", err)
	}
}

func TestSimulateRefusesNonsense(t *testing.T) {
	for want, s := range map[string]simulation{
		"--trace needs --seed":          {seed: -1, trace: true},
		"--seeds none needs --duration": {seed: -1},
		"--replicas 10":                 {seed: 1, campaign: sim.Campaign{Replicas: []int{10}}},
		`--profile: profile "x"`:        {seed: 1, campaign: sim.Campaign{Profiles: []string{"x"}}},
		`--preset: preset "y"`:          {seed: 1, campaign: sim.Campaign{Options: sim.Options{Preset: "y"}}},
		"--seed takes one --replicas ":  {seed: 1, campaign: sim.Campaign{Replicas: []int{3, 5}}},
	} {
		if err := s.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
