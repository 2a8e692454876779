package sim

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"testing"
)

// The steps of a run that clients and other replicas can notice must be steps
// that tla/Recovery.tla allows. This test reads them from the story of a run and
// follows the part of the specification that speaks of views: who leads, who has
// answered a new leader, what is open. It knows neither logs nor commands;
// docs/tla.md says what that leaves to the checks of this package.

// steps is the state of Recovery.tla that a trace determines.
type steps struct {
	leader map[uint64]uint64 // led[t].by
	open   map[uint64]bool   // led[t].stage = "open"
	view   map[uint64]uint64 // of each replica, as far as it has shown it
	counts map[string]int
}

func newSteps() *steps {
	return &steps{leader: map[uint64]uint64{}, open: map[uint64]bool{}, view: map[uint64]uint64{}, counts: map[string]int{}}
}

// step takes one step of replica r in view v, or says why the specification has
// none such.
func (s *steps) step(action string, r, v uint64) error {
	s.counts[action]++
	leads := s.leader[v] == r
	switch action {
	case "elect":
		if other, ok := s.leader[v]; ok && other != r {
			return fmt.Errorf("term %d has the leaders %d and %d", v, other, r)
		}
		s.leader[v] = r
	case "answer": // a pool goes to the leader of v
		if s.view[r] > v {
			return fmt.Errorf("replica %d answers the leader of %d after that of %d", r, v, s.view[r])
		}
		s.view[r] = v
	case "recover":
		if !leads || s.open[v] {
			return fmt.Errorf("replica %d recovers in view %d, which %d leads (open: %v)", r, v, s.leader[v], s.open[v])
		}
	case "open":
		switch {
		case !leads && !s.open[v]:
			return fmt.Errorf("replica %d takes view %d for open before its leader %d opens it", r, v, s.leader[v])
		case leads && s.view[r] > v:
			return fmt.Errorf("replica %d opens view %d after it answered the leader of %d", r, v, s.view[r])
		case leads:
			s.open[v], s.view[r] = true, v
		}
	case "vote":
		switch {
		case !s.open[v]:
			return fmt.Errorf("replica %d votes in view %d, which is not open", r, v)
		case s.view[r] > v:
			return fmt.Errorf("replica %d votes in view %d after it answered the leader of %d (S5)", r, v, s.view[r])
		}
	case "spec":
		switch {
		case !leads:
			return fmt.Errorf("replica %d tells a result in view %d, which %d leads", r, v, s.leader[v])
		case !s.open[v]:
			return fmt.Errorf("replica %d tells a result in view %d before it is open (S6)", r, v)
		case s.view[r] > v:
			return fmt.Errorf("replica %d tells a result in view %d after it answered the leader of %d (S5)", r, v, s.view[r])
		}
	}
	return nil
}

var (
	eventLine = regexp.MustCompile(`^ *[0-9.]+ ms +(\d+) (is elected|opens|votes for|speculates on|recovers) (\d+\.\d+) in view (\d+), entry \d+, yes (true|false)$`)
	poolLine  = regexp.MustCompile(`^ *[0-9.]+ ms +(\d+) -> (\d+) +Pool view=(\d+)`)
	actions   = map[string]string{"is elected": "elect", "opens": "open", "votes for": "vote", "speculates on": "spec", "recovers": "recover"}
)

// digits is the number that an expression has found.
func digits(b []byte) uint64 {
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		panic(err) // the expressions match digits only
	}
	return n
}

// follow takes all steps of a story.
func (s *steps) follow(story []byte) error {
	for line := range bytes.Lines(story) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		var err error
		if m := eventLine.FindSubmatch(line); m != nil {
			action := actions[string(m[2])]
			if action == "spec" && string(m[5]) == "false" {
				continue // it declines
			}
			err = s.step(action, digits(m[1]), digits(m[4]))
		} else if m := poolLine.FindSubmatch(line); m != nil {
			err = s.step("answer", digits(m[1]), digits(m[3]))
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
	}
	return nil
}

func TestStepsOfTheSpecification(t *testing.T) {
	total := map[string]int{}
	for seed := uint64(1); seed <= 16; seed++ {
		var story bytes.Buffer
		r, err := Run(Options{
			Seed: seed, Trace: &story,
			Preset: []string{"curp", "curp-ht", "curp-ho"}[seed%3], Profile: []string{"views", "crash", "partition", "clock"}[seed%4],
		})
		if err != nil {
			t.Fatal(err)
		}
		s := newSteps()
		if err := s.follow(story.Bytes()); err != nil {
			t.Errorf("seed %d %+v: %v", seed, r.Config, err)
		}
		for action, n := range s.counts {
			total[action] += n
		}
	}
	t.Logf("steps: %v", total)
	for _, action := range []string{"elect", "answer", "recover", "open", "vote", "spec"} {
		if total[action] == 0 {
			t.Errorf("no step %q was found in any story: it is not told any more, or in other words", action)
		}
	}
}

// TestStepsRefused shows what the specification has no step for.
func TestStepsRefused(t *testing.T) {
	type step struct {
		action string
		r, v   uint64
	}
	begin := []step{{"elect", 1, 1}, {"answer", 2, 1}, {"open", 1, 1}, {"elect", 2, 2}}
	for name, last := range map[string][]step{
		"two leaders":          {{"elect", 3, 2}},
		"vote, not open":       {{"vote", 1, 2}},
		"vote, moved on":       {{"answer", 3, 2}, {"vote", 3, 1}},
		"result, moved on":     {{"answer", 1, 2}, {"spec", 1, 1}},
		"result, not open":     {{"spec", 2, 2}},
		"result, other's view": {{"open", 2, 2}, {"spec", 1, 2}},
		"answer, moved on":     {{"answer", 3, 2}, {"answer", 3, 1}},
		"open, not its own":    {{"open", 3, 2}},
		"recovery, when open":  {{"recover", 1, 1}},
	} {
		s := newSteps()
		all := append(append([]step{}, begin...), last...)
		for i, x := range all {
			err := s.step(x.action, x.r, x.v)
			if wrong := i == len(all)-1; wrong != (err != nil) {
				t.Errorf("%s: step %d %+v: %v", name, i, x, err)
			}
		}
	}
}
