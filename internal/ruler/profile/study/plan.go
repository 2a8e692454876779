// Package study compares ways of running one workload: pools, concurrencies, drivers,
// transports, cold and warm. It converts a grid of them to an experiment, and the results to a
// report.
package study

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/ruler/profile"
)

// Axes are the factors of a study. Every combination of their levels is a case. An axis without
// levels has one level, that of the base.
type Axes struct {
	Base        profile.Config
	Drivers     []string
	Transports  []profile.Transport
	Modes       []profile.Mode
	Pools       []int
	Concurrency []int
	// Cold adds to each case one that starts with an empty pool.
	Cold bool
	// ColdRequests is the number of operations of a cold case. Default: 20 per worker, as in
	// report 4.
	ColdRequests int64
}

// The factors of cases.
const (
	FactorDriver      = "driver"
	FactorTransport   = "transport"
	FactorMode        = "mode"
	FactorPool        = "pool"
	FactorConcurrency = "concurrency"
	FactorStart       = "start"
)

// The levels of the factor start.
const (
	StartCold = "cold"
	StartWarm = "warm"
)

// caseOf is one combination.
type caseOf struct {
	name    string
	factors map[string]string
	config  profile.Config
}

// coldPerWorker is report 4's ratio: 2000 requests by 100 workers.
const coldPerWorker = 20

// cases returns all combinations for an engine, in an order in which neighbours differ little.
// All configurations have their defaults.
func (a Axes) cases(engine string) []caseOf {
	list := []caseOf{{config: a.Base, factors: map[string]string{}}}
	list = cross(list, a.Drivers, func(c *profile.Config, v string) { c.Driver = v })
	list = cross(list, a.Transports, func(c *profile.Config, v profile.Transport) { c.Transport = v })
	list = cross(list, a.Modes, func(c *profile.Config, v profile.Mode) { c.Mode = v })
	list = cross(list, a.Concurrency, func(c *profile.Config, v int) { c.Concurrency = v })
	list = cross(list, a.Pools, func(c *profile.Config, v int) { c.PoolMax = v })
	if a.Cold {
		list = cross(list, []bool{false, true}, func(c *profile.Config, v bool) { c.Cold = v })
	}
	for i := range list {
		c := &list[i]
		c.config = c.config.WithDefaults(engine)
		c.factors = factors(c.config)
		if c.config.Cold {
			c.config.Requests = cmp.Or(a.ColdRequests, int64(coldPerWorker*c.config.Concurrency))
			c.config.Duration = 0
		}
	}
	list = slices.CompactFunc(list, func(x, y caseOf) bool { return maps.Equal(x.factors, y.factors) })
	nameCases(list)
	return list
}

// cross combines each case with each level of an axis.
func cross[T any](list []caseOf, levels []T, set func(*profile.Config, T)) []caseOf {
	if len(levels) == 0 {
		return list
	}
	var out []caseOf
	for _, c := range list {
		for _, v := range levels {
			d := c
			set(&d.config, v)
			out = append(out, d)
		}
	}
	return out
}

func factors(c profile.Config) map[string]string {
	start := StartWarm
	if c.Cold {
		start = StartCold
	}
	return map[string]string{
		FactorDriver: c.Driver, FactorTransport: c.Transport.String(), FactorMode: string(c.Mode),
		FactorPool: strconv.Itoa(c.PoolMax), FactorConcurrency: strconv.Itoa(c.Concurrency), FactorStart: start,
	}
}

// factorOrder is the order of factors in names.
var factorOrder = []string{FactorDriver, FactorTransport, FactorMode, FactorConcurrency, FactorPool, FactorStart}

// nameCases names each case by the factors that vary.
func nameCases(list []caseOf) {
	for i := range list {
		var parts []string
		for _, f := range factorOrder {
			v := list[i].factors[f]
			if !varies(list, f) {
				continue
			}
			switch f {
			case FactorConcurrency:
				v = plural(v, "worker")
			case FactorPool:
				v = "pool " + v
			}
			parts = append(parts, v)
		}
		list[i].name = cmp.Or(strings.Join(parts, ", "), "profile")
	}
}

func plural(n, what string) string {
	if n == "1" {
		return n + " " + what
	}
	return n + " " + what + "s"
}

func varies(list []caseOf, factor string) bool {
	return slices.ContainsFunc(list, func(c caseOf) bool { return c.factors[factor] != list[0].factors[factor] })
}

// common returns the factors that all cases share.
func common(list []caseOf) map[string]string {
	out := make(map[string]string)
	for _, f := range factorOrder {
		if !varies(list, f) {
			out[f] = list[0].factors[f]
		}
	}
	return out
}

// sweptFactor returns the factor whose best level is searched for: a numeric factor that
// varies, preferably the size of the pool.
func sweptFactor(list []caseOf) (factor, unit string) {
	switch {
	case varies(list, FactorPool):
		return FactorPool, "connections"
	case varies(list, FactorConcurrency):
		return FactorConcurrency, "workers"
	default:
		return "", ""
	}
}

// validate checks every case before the first one runs.
func validate(t *profile.Target, list []caseOf) error {
	for _, c := range list {
		if err := t.Validate(c.config); err != nil {
			if len(list) > 1 {
				return fmt.Errorf("case %s: %w", c.name, err)
			}
			return err
		}
	}
	return nil
}

// LargestPool is the largest number of connections of any case, which the server must allow.
func (a Axes) LargestPool() int {
	return max(slices.Max(append([]int{a.Base.PoolMax, a.Base.Concurrency, 1}, a.Pools...)), slices.Max(append([]int{0}, a.Concurrency...)))
}
