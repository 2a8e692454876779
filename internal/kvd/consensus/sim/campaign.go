package sim

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"
)

// Campaign is a series of runs with consecutive seeds, on several threads. Runs are independent
// of each other.
type Campaign struct {
	Options  Options  // of every run; Seed and Trace are not used
	From     uint64   // first seed
	Seeds    int      // how many. 0: until the context ends
	Replicas []int    // if set, used in turn
	Profiles []string // if set, used in turn
	Workers  int      // Default: 1
	Failures int      // number of failed seeds after which to stop. Default: 1
	// Report, if set, is called after each run, by one goroutine at a time.
	Report func(*Totals)
}

// Totals are the sums of the runs of a campaign.
type Totals struct {
	Seeds    uint64   `json:"seeds"`              // number of runs
	Stats    Stats    `json:"stats"`              // sums over all runs
	Failures []Result `json:"failures,omitempty"` // runs that violated a check
	Next     uint64   `json:"next"`               // first seed that was not started
}

// Run runs the campaign. It ends early, without an error, when ctx does.
func (c Campaign) Run(ctx context.Context) (*Totals, error) {
	t := &Totals{Next: c.From}
	failures := max(c.Failures, 1)
	var mu sync.Mutex // guards t and first
	var first error
	next := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if first != nil || ctx.Err() != nil || len(t.Failures) >= failures || c.Seeds > 0 && t.Next >= c.From+uint64(c.Seeds) {
			return 0, false
		}
		t.Next++
		return t.Next - 1, true
	}
	var wg sync.WaitGroup
	for range max(c.Workers, 1) {
		wg.Go(func() {
			for seed, ok := next(); ok; seed, ok = next() {
				r, err := Run(c.optionsOf(seed))
				mu.Lock()
				if err != nil && first == nil {
					first = err
				}
				t.add(&r)
				if c.Report != nil && err == nil {
					c.Report(t)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(t.Failures, func(a, b Result) int { return int(a.Seed) - int(b.Seed) })
	return t, first
}

// optionsOf returns the options for one seed.
func (c *Campaign) optionsOf(seed uint64) Options {
	o := c.Options
	o.Seed, o.Trace = seed, nil
	if n := uint64(len(c.Replicas)); n > 0 {
		o.Replicas = c.Replicas[seed%n]
	}
	if n := uint64(len(c.Profiles)); n > 0 {
		o.Profile = c.Profiles[seed/max(1, uint64(len(c.Replicas)))%n]
	}
	return o
}

func (t *Totals) add(r *Result) {
	t.Seeds++
	addNumbers(reflect.ValueOf(&t.Stats).Elem(), reflect.ValueOf(r.Stats))
	if len(r.Violations) > 0 {
		t.Failures = append(t.Failures, *r)
	}
}

// addNumbers adds the fields of b to those of a.
func addNumbers(a, b reflect.Value) {
	for i := range a.NumField() {
		switch f := a.Field(i); f.Kind() {
		case reflect.Uint64:
			f.SetUint(f.Uint() + b.Field(i).Uint())
		case reflect.Int64:
			f.SetInt(f.Int() + b.Field(i).Int())
		case reflect.Struct:
			addNumbers(f, b.Field(i))
		default:
			panic(fmt.Sprintf("a field of %v is not a number", a.Type()))
		}
	}
}

// Counts returns the faults by name, in the order of the fields.
func (f *Faults) Counts() []Count {
	v := reflect.ValueOf(f).Elem()
	var list []Count
	for i := range v.NumField() {
		list = append(list, Count{v.Type().Field(i).Name, v.Field(i).Uint()})
	}
	return list
}

// Count is how often something happened.
type Count struct {
	Name  string
	Times uint64
}

// Command returns the command line that repeats a run.
func (r *Result) Command() string {
	s := fmt.Sprintf("weir kv simulate --seed %d --replicas %d --preset %s --profile %s", r.Seed, r.Config.Replicas, r.Config.Preset, r.Config.Profile)
	if r.Config.SessionIdle != time.Hour {
		s += fmt.Sprintf(" --session-idle %v", r.Config.SessionIdle)
	}
	return s + " --trace"
}
