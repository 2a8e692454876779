package measure

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// OtherCategory is the category of samples that no rule matches at any frame.
const OtherCategory = "other"

//go:embed categories.txt
var defaultRules string

// Rules assign the samples of a profile to categories. They are immutable and safe for
// concurrent use.
type Rules struct {
	rules []rule
	names []string // in order of first appearance
}

type rule struct {
	category int
	pattern  *regexp.Regexp
}

// DefaultRules returns the rules for programs built on weir.
func DefaultRules() *Rules {
	r, err := ParseRules(defaultRules)
	if err != nil {
		panic("measure: embedded rules: " + err.Error())
	}
	return r
}

// ParseRules parses rules, one per line: a category, a colon, a regular expression for full
// function names. Empty lines and lines that begin with # are ignored. Earlier rules take
// precedence.
func ParseRules(text string) (*Rules, error) {
	r := &Rules{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, expr, ok := strings.Cut(line, ":")
		name, expr = strings.TrimSpace(name), strings.TrimSpace(expr)
		if !ok || name == "" || expr == "" {
			return nil, fmt.Errorf("line %d: want category: expression", n)
		}
		if name == OtherCategory {
			return nil, fmt.Errorf("line %d: %q is reserved for what no rule matches", n, OtherCategory)
		}
		re, err := regexp.Compile(expr)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		at := slices.Index(r.names, name)
		if at < 0 {
			at = len(r.names)
			r.names = append(r.names, name)
		}
		r.rules = append(r.rules, rule{at, re})
	}
	if len(r.rules) == 0 {
		return nil, errors.New("no rules")
	}
	return r, nil
}

// match returns the category of a function, or -1 if no rule matches.
func (r *Rules) match(function string) int {
	for _, ru := range r.rules {
		if ru.pattern.MatchString(function) {
			return ru.category
		}
	}
	return -1
}

// Category is one category's part of a profile.
type Category struct {
	Name string `json:"name"`
	// Exclusive is the share of the profile, in [0, 1], of the samples that are assigned to
	// this category: these shares add up to 1.
	Exclusive float64 `json:"exclusive"`
	// Cumulative is the share of the samples that have the category anywhere on their stack.
	// These shares overlap, and their sum means nothing.
	Cumulative float64 `json:"cumulative"`
	// Functions are functions of the category with its exclusive samples, the largest
	// cumulative shares first. Flat counts a sample for the function that decided its category,
	// Cumulative also for those of the category that called it: these overlap.
	Functions []Site `json:"functions,omitempty"`
}

// mostFunctions is the maximum length of Category.Functions.
const mostFunctions = 6

// inCategory counts the samples of one category by function.
type inCategory struct{ flat, cum map[string]int64 }

// enter counts a sample for a run of functions that call each other, the innermost first.
func (i *inCategory) enter(run []string, v int64) {
	if i.flat == nil {
		i.flat, i.cum = make(map[string]int64), make(map[string]int64)
	}
	i.flat[run[0]] += v
	for n, fn := range run {
		if !slices.Contains(run[:n], fn) { // count a recursive function once
			i.cum[fn] += v
		}
	}
}

func (i *inCategory) sites(total int64) []Site {
	var out []Site
	for fn, v := range i.cum {
		if v > 0 {
			out = append(out, Site{Function: fn, Flat: float64(i.flat[fn]) / float64(total), Cumulative: float64(v) / float64(total), Value: v})
		}
	}
	slices.SortFunc(out, func(a, b Site) int {
		return cmp.Or(descending(a.Cumulative, b.Cumulative), descending(a.Flat, b.Flat), strings.Compare(a.Function, b.Function))
	})
	return out[:min(mostFunctions, len(out))]
}

// CPUBreakdown is a CPU profile by category.
type CPUBreakdown struct {
	Seconds    float64    `json:"seconds"` // CPU time sampled
	Samples    int64      `json:"samples"`
	Categories []Category `json:"categories"` // by exclusive share, largest first
	// Unmatched lists the leaves of the largest samples in OtherCategory, so that rules can be
	// written for them.
	Unmatched []Site `json:"unmatched,omitempty"`
}

// Site is a function and its part of a profile, as a share in [0, 1].
type Site struct {
	Function   string  `json:"function"`
	Flat       float64 `json:"flat"`       // the function itself
	Cumulative float64 `json:"cumulative"` // with all it called
	Value      int64   `json:"value"`      // cumulative, in the profile's unit
}

// Breakdown divides a CPU profile into categories.
func (r *Rules) Breakdown(p *profile.Profile) (*CPUBreakdown, error) {
	value, err := valueIndex(p, "cpu")
	if err != nil {
		return nil, err
	}
	cache := make(map[string]int)
	match := func(fn string) int {
		c, ok := cache[fn]
		if !ok {
			c = r.match(fn)
			cache[fn] = c
		}
		return c
	}
	exclusive := make([]int64, len(r.names)+1)
	cumulative := make([]int64, len(r.names)+1)
	unmatched := make(map[string]int64)
	within := make([]inCategory, len(r.names))
	var run []string
	out := &CPUBreakdown{}
	var total int64
	for _, s := range p.Sample {
		v := s.Value[value]
		total += v
		out.Samples += s.Value[0]
		winner := -1
		leaf := ""
		seen := make(map[int]bool, 4)
		run = run[:0]
		unbroken := true
		for fn := range frames(s) {
			if leaf == "" {
				leaf = fn
			}
			c := match(fn)
			if c >= 0 && winner < 0 {
				winner = c
			}
			if winner >= 0 {
				if unbroken = unbroken && c == winner; unbroken {
					run = append(run, fn)
				}
			}
			if c < 0 || seen[c] {
				continue
			}
			seen[c] = true
			cumulative[c] += v
		}
		if winner >= 0 {
			within[winner].enter(run, v)
		}
		if winner < 0 {
			winner = len(r.names)
			cumulative[winner] += v
			unmatched[leaf] += v
		}
		exclusive[winner] += v
	}
	if total == 0 {
		return nil, errors.New("profile holds no CPU time")
	}
	out.Seconds = float64(total) / 1e9
	for i, name := range append(slices.Clone(r.names), OtherCategory) {
		if cumulative[i] > 0 {
			c := Category{
				Name:       name,
				Exclusive:  float64(exclusive[i]) / float64(total),
				Cumulative: float64(cumulative[i]) / float64(total),
			}
			if i < len(within) {
				c.Functions = within[i].sites(total)
			}
			out.Categories = append(out.Categories, c)
		}
	}
	slices.SortStableFunc(out.Categories, func(a, b Category) int { return descending(a.Exclusive, b.Exclusive) })
	out.Unmatched = largest(unmatched, unmatched, total, 5)
	return out, nil
}

// TopSites returns the n functions with the largest flat share of a profile's value of the
// given type ("cpu", "inuse_space", "alloc_space"), largest first.
func TopSites(p *profile.Profile, sampleType string, n int) ([]Site, error) {
	value, err := valueIndex(p, sampleType)
	if err != nil {
		return nil, err
	}
	flat, cum := make(map[string]int64), make(map[string]int64)
	var total int64
	for _, s := range p.Sample {
		v := s.Value[value]
		total += v
		first := true
		seen := make(map[string]bool)
		for fn := range frames(s) {
			if first {
				flat[fn] += v
				first = false
			}
			if !seen[fn] { // a recursive function is on the stack more than once
				seen[fn] = true
				cum[fn] += v
			}
		}
	}
	if total == 0 {
		return nil, fmt.Errorf("profile holds no %s", sampleType)
	}
	return largest(flat, cum, total, n), nil
}

// largest returns the n functions with the largest flat values, ties by name.
func largest(flat, cum map[string]int64, total int64, n int) []Site {
	var out []Site
	for fn, v := range flat {
		if v == 0 {
			continue
		}
		out = append(out, Site{
			Function:   fn,
			Flat:       float64(v) / float64(total),
			Cumulative: float64(cum[fn]) / float64(total),
			Value:      cum[fn],
		})
	}
	slices.SortFunc(out, func(a, b Site) int {
		if c := descending(a.Flat, b.Flat); c != 0 {
			return c
		}
		return strings.Compare(a.Function, b.Function)
	})
	return out[:min(n, len(out))]
}

func descending(a, b float64) int {
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	default:
		return 0
	}
}

// frames yields the function names of a sample from the leaf to the root, with
// inlined calls as frames of their own.
func frames(s *profile.Sample) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, loc := range s.Location {
			for _, line := range loc.Line {
				if line.Function != nil && !yield(line.Function.Name) {
					return
				}
			}
		}
	}
}

// valueIndex finds the value of a sample type.
func valueIndex(p *profile.Profile, name string) (int, error) {
	for i, t := range p.SampleType {
		if t.Type == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("profile has no values of type %s", name)
}
