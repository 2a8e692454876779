package sim

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
)

// Verdict returns an error if runs violated a guarantee, with the command that repeats the
// first of them.
func Verdict(runs []Result) error {
	for i := range runs {
		r := &runs[i]
		if len(r.Violations) > 0 {
			return fmt.Errorf("seed %d violates a guarantee: %v; to repeat it: %s", r.Seed, r.Violations[0], r.Command())
		}
	}
	return nil
}

// lines prints lines and keeps the first error.
type lines struct {
	w   io.Writer
	err error
}

func (l *lines) printf(format string, args ...any) {
	if l.err == nil {
		_, l.err = fmt.Fprintf(l.w, format+"\n", args...)
	}
}

// Print prints the run as text.
func (r *Result) Print(w io.Writer) error {
	l := &lines{w: w}
	c := &r.Config
	l.printf("seed %d: %d replicas, preset %s, profile %s, %d clients; trace hash %016x", r.Seed, c.Replicas, c.Preset, c.Profile, c.Clients, r.Hash)
	r.Stats.print(l)
	for _, v := range r.Violations {
		l.printf("broken: %v", v)
	}
	return l.err
}

// Print prints the totals as text.
func (t *Totals) Print(w io.Writer, took time.Duration) error {
	l := &lines{w: w}
	l.printf("%d seeds in %v, up to seed %d", t.Seeds, took.Round(time.Millisecond), t.Next-1)
	t.Stats.print(l)
	for i := range t.Failures {
		r := &t.Failures[i]
		l.printf("broken by seed %d: %v", r.Seed, r.Violations[0])
		l.printf("  %s", r.Command())
	}
	if len(t.Failures) == 0 {
		l.printf("no promise was broken")
	}
	return l.err
}

func (s *Stats) print(l *lines) {
	l.printf("virtual time   %v", s.Virtual.Round(time.Millisecond))
	l.printf("operations     %d, %d of them on the fast path, %d without an outcome", s.Operations, s.Fast, s.Failed)
	l.printf("messages       %d; %d syncs, %d snapshots, %d shipped", s.Messages, s.Syncs, s.Snapshots, s.Ships)
	l.printf("checked        %d answers against the log, %d histories of keys by porcupine, %d of which it gave up", s.Checked, s.Keys, s.Undecided)
	var faults []string
	for _, c := range s.Faults.Counts() {
		if c.Times > 0 {
			faults = append(faults, fmt.Sprintf("%d %s", c.Times, spaced(c.Name)))
		}
	}
	l.printf("faults         %s", cmp.Or(strings.Join(faults, ", "), "none"))
}

// spaced converts SlowDisks to "slow disks".
func spaced(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte(' ')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}
