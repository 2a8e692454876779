package study

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/ruler/profile"
)

// Preset is a named set of cases.
type Preset struct {
	Engines            []string
	Concurrency, Pools []int
	Cold               bool
}

// presets are the experiments that can be run by name.
var presets = map[string]Preset{
	// Report 4: 100 workers over a pool of 100 and over one of 5. It started with empty pools,
	// so that it mostly measured the opening of connections; the warm cases show the rest.
	"pools": {
		Engines:     []string{profile.EnginePostgres, profile.EngineMariaDB},
		Concurrency: []int{100}, Pools: []int{100, 5}, Cold: true,
	},
	// The best pool for a load, from one connection to one per worker.
	"sizes": {
		Engines:     []string{profile.EnginePostgres},
		Concurrency: []int{1, 8, 32, 100}, Pools: []int{1, 2, 5, 10, 25, 100},
	},
}

// Experiments lists the names that Experiment accepts.
func Experiments() []string { return slices.Sorted(maps.Keys(presets)) }

// Experiment returns the set of cases with a name.
func Experiment(name string) (Preset, error) {
	p, ok := presets[name]
	if !ok {
		return p, fmt.Errorf("no experiment %q: want one of %s", name, strings.Join(Experiments(), ", "))
	}
	return p, nil
}
