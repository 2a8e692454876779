package sim

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTraceWithTLC lets TLC decide whether runs are behaviours of
// tla/Recovery.tla, logs and pools included. WEIR_TLC is the path of TLC's
// tla2tools.jar; without it there is nothing to decide with.
func TestTraceWithTLC(t *testing.T) {
	jar := os.Getenv("WEIR_TLC")
	if jar == "" {
		t.Skip("WEIR_TLC does not name a tla2tools.jar; docs/tla.md says where it comes from")
	}
	checked := 0
	for seed := uint64(1); seed <= 60 && checked < 2; seed++ {
		var story bytes.Buffer
		if _, err := Run(Options{Seed: seed, Replicas: 3, Preset: "curp", Profile: "views", Trace: &story}); err != nil {
			t.Fatal(err)
		}
		tr := project(story.Bytes())
		if tr == nil {
			continue
		}
		checked++
		t.Logf("seed %d: %d steps, %d views", seed, len(tr.steps), tr.views)
		accepted, output := tr.accepted(t, jar)
		if !accepted {
			t.Errorf("seed %d: no behaviour of the specification:\n%s\n%s", seed, strings.Join(tr.steps, "\n"), output)
		}
		// Without the votes, the same steps are not a behaviour of the specification: nothing is
		// recovered without votes.
		tr.steps = slices.DeleteFunc(tr.steps, func(s string) bool { return strings.Contains(s, `"vote"`) })
		if accepted, _ := tr.accepted(t, jar); accepted {
			t.Errorf("seed %d: accepted though nobody votes", seed)
		}
	}
	if checked == 0 {
		t.Fatal("no run recovers anything")
	}
}

// projected is what of a run concerns a few operations, as steps of Trace.tla.
type projected struct {
	first uint64
	views int
	steps []string
}

// project takes the part of a story from the first view that is open to the
// last that recovers something, and two operations: one that is recovered, and
// another one of another session. It gives nil if nothing is recovered or there
// are too many views for TLC.
func project(story []byte) *projected {
	const maxViews = 2
	type event struct {
		action, op string
		r, v       uint64
	}
	var all []event
	begun := false
	leader := map[uint64]uint64{}
	last := -1
	for line := range bytes.Lines(story) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if m := eventLine.FindSubmatch(line); m != nil {
			e := event{action: actions[string(m[2])], op: string(m[3]), r: digits(m[1]), v: digits(m[4])}
			if e.action == "elect" {
				leader[e.v] = e.r
				continue
			}
			begun = begun || e.action == "open"
			if begun && !(e.action == "spec" && string(m[5]) == "false") {
				all = append(all, e)
			}
			if e.action == "recover" && last < 0 {
				last = len(all)
			}
		} else if m := poolLine.FindSubmatch(line); m != nil && begun {
			all = append(all, event{action: "answer", r: digits(m[1]), v: digits(m[3])})
		}
	}
	if last < 0 {
		return nil
	}
	recovered := all[last-1]
	for last < len(all) && !(all[last].action == "open" && all[last].v == recovered.v) { // so far it goes: the view opens
		last++
	}
	if last == len(all) {
		return nil
	}
	all = all[:last+1]
	ops := map[string]int{recovered.op: 1}
	for _, e := range all {
		session, _, _ := strings.Cut(e.op, ".")
		if mine, _, _ := strings.Cut(recovered.op, "."); e.action == "vote" && session != mine && len(ops) < 2 {
			ops[e.op] = 2
		}
	}
	var terms []uint64
	for _, e := range all {
		if !slices.Contains(terms, e.v) && (e.action == "answer" || e.action == "open") {
			terms = append(terms, e.v)
		}
	}
	slices.Sort(terms)
	if len(terms) > maxViews || all[0].action != "open" {
		return nil
	}
	tr := &projected{first: leader[all[0].v], views: len(terms)}
	for i, v := range terms {
		tr.add("lead", leader[v], uint64(i+1), 0)
	}
	seen := map[event]bool{}
	for _, e := range all[1:] {
		v := uint64(slices.Index(terms, e.v) + 1)
		if v == 0 || seen[e] {
			continue
		}
		seen[e] = true
		switch x := ops[e.op]; {
		case e.action == "open" && leader[e.v] == e.r:
			tr.add("open", e.r, v, 0)
		case e.action == "open":
			tr.add("follow", e.r, v, 0)
		case e.action == "answer":
			tr.add("answer", e.r, v, 0)
		case x > 0:
			tr.add(e.action, e.r, v, x)
		}
	}
	return tr
}

func (p *projected) add(do string, r, v uint64, x int) {
	p.steps = append(p.steps, fmt.Sprintf(`[do |-> %q, r |-> %d, v |-> %d, x |-> %d]`, do, r, v, x))
}

// accepted asks TLC.
func (p *projected) accepted(t *testing.T, jar string) (bool, string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"Recovery.tla", "Trace.tla"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "tla", name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(text))
	}
	write(t, filepath.Join(dir, "Run.tla"), fmt.Sprintf("---- MODULE Run ----\nEXTENDS Trace\nTheSteps == <<\n  %s >>\n====\n", strings.Join(p.steps, ",\n  ")))
	write(t, filepath.Join(dir, "Run.cfg"), fmt.Sprintf(`SPECIFICATION TraceSpec
CONSTANTS
  Replicas = {1, 2, 3}
  First = %d
  Nobody = Nobody
  NoOp = NoOp
  Ops = {1, 2}
  Clash = {}
  Before = NoOp
  After = NoOp
  MaxView = %d
  Broken = {}
  Steps <- TheSteps
CHECK_DEADLOCK FALSE
INVARIANTS NotAll DoneIsKept ResultsStand LogsAreSound
`, p.first, p.views))
	cmd := exec.Command("java", "-XX:+UseParallelGC", "-jar", jar, "-workers", "1", "-nowarning", "-noGenerateSpecTE", "-config", "Run.cfg", "Run.tla")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	switch {
	case bytes.Contains(out, []byte("Invariant NotAll is violated")):
		return true, string(out)
	case err == nil && bytes.Contains(out, []byte("No error has been found")):
		return false, string(out)
	}
	t.Fatalf("TLC: %v\n%s", err, out)
	return false, ""
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
