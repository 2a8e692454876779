package restore

import (
	"fmt"
	"slices"
	"strings"
)

// maxIndexWorkers is the server's maximum.
const maxIndexWorkers = 1024

// TuningNames lists the settings that can be set in a restore's sessions: they affect its
// speed, but not what is restored.
func TuningNames() []string {
	return []string{
		"effective_cache_size", "effective_io_concurrency", "enable_hashjoin", "enable_mergejoin", "enable_nestloop",
		"enable_seqscan", "jit", "maintenance_io_concurrency", "max_parallel_workers", "max_parallel_workers_per_gather",
		"random_page_cost", "seq_page_cost", "temp_buffers", "wal_compression", "work_mem",
	}
}

// validTuning returns an error that names the invalid setting.
func validTuning(settings []string) error {
	var seen []string
	for _, s := range settings {
		name, value, ok := strings.Cut(s, "=")
		if !ok || value == "" || !slices.Contains(TuningNames(), name) || slices.Contains(seen, name) {
			return fmt.Errorf("--set %q: want NAME=VALUE, each NAME once and one of %s", s, strings.Join(TuningNames(), ", "))
		}
		seen = append(seen, name)
	}
	return nil
}
