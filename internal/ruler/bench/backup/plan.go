package backupbench

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/cli"
)

// Plan says how much of the benchmark to run.
type Plan struct {
	// Compress lists the shapes whose text is compressed by all Methods, CompressBytes at a
	// time.
	Compress      []string
	CompressBytes int64
	// Methods are compressions in the form of weir backup --compress.
	Methods []string
	// Copy is how many bytes are copied at a time by each method; 0 for no copies.
	Copy int64
	// Buffers adds the experiments on buffers.
	Buffers bool
	// MicroRounds and MicroDuration apply to the experiments above.
	MicroRounds   int
	MicroDuration time.Duration

	// Shapes lists the databases to back up and restore.
	Shapes []Size
	// Rounds is how many turns each of their sides takes.
	Rounds int
	// Slow adds tools at settings that take a minute instead of seconds, and more of weir's own
	// settings.
	Slow bool
	// Profiles adds weir with each of these profiles, on the first shape.
	Profiles []string
	// Jobs are numbers of jobs of weir and of tools that have them. Several are compared, on
	// the first shape; everything else uses as many as there are processors.
	Jobs []int
	// Blocks and Workers are block sizes in bytes and numbers of workers of parallel gzip, each
	// compared on the first of Compress.
	Blocks  []int
	Workers []int
	// Storage lists places of archives. If S3 is among them, they are compared, on the first
	// shape.
	Storage []string
	// Memory adds weir's peak memory at a tenth of the first shape's size and at the whole.
	Memory bool
	// Adaptive adds weir with an adaptive number of jobs, and Settings restores of PostgreSQL
	// with several settings of weir's sessions, on the first shape.
	Adaptive, Settings bool
	// CPU adds where weir's CPU time goes, on the first shape.
	CPU bool
}

// profileNames lists weir's profiles.
func profileNames() []string {
	var out []string
	for _, p := range bulk.Profiles() {
		out = append(out, p.Name)
	}
	return out
}

// Size is a shape at a size, in bytes of text.
type Size struct {
	Shape string
	Bytes int64
}

// MB is the unit of sizes, as in weir's flags.
const MB = 1 << 20

// sizeText formats a size.
func sizeText(bytes int64) string {
	if bytes >= 1000*MB {
		return fmt.Sprintf("%.0f MB", float64(bytes)/MB)
	}
	return fmt.Sprintf("%.3g MB", float64(bytes)/MB)
}

// Plans are the plans by name. size is that of the shop, the first shape; other shapes are
// fractions of it.
func Plans(size int64) map[string]Plan {
	return map[string]Plan{
		// For trying that everything works: its figures mean nothing.
		"smoke": {
			Compress: []string{"shop"}, CompressBytes: MB / 4, Copy: MB, Buffers: true,
			Methods:     []string{"lz4:1", "zstd:1", "gzip:1"},
			MicroRounds: 1, MicroDuration: 5 * time.Millisecond,
			Shapes: []Size{{"shop", size}}, Rounds: 1, Memory: true, CPU: true, Adaptive: true, Settings: true,
		},
		"mini": {
			Compress: []string{"shop"}, CompressBytes: 8 * MB, Copy: 32 * MB, Buffers: true,
			Methods:     []string{"lz4:1", "zstd:1", "zstd:3", "gzip:1", "gzip:6"},
			MicroRounds: 3, MicroDuration: 100 * time.Millisecond,
			Shapes: []Size{{"shop", size}, {"huge", size / 2}}, Rounds: 3, Memory: true, CPU: true, Adaptive: true, Settings: true,
		},
		"full": {
			Compress: []string{"shop", "text", "binary", "random"}, CompressBytes: 32 * MB, Copy: 128 * MB, Buffers: true,
			Methods:     []string{"lz4:1", "lz4:9", "zstd:1", "zstd:3", "zstd:6", "zstd:10", "gzip:1", "gzip:6", "gzip:9"},
			MicroRounds: 9, MicroDuration: 200 * time.Millisecond,
			Shapes: []Size{
				{"shop", size}, {"many", size / 6}, {"huge", size / 2}, {"text", size / 4}, {"binary", size / 4}, {"random", size / 4},
			},
			Rounds: 6, Slow: true, Profiles: profileNames(), Memory: true, CPU: true, Adaptive: true, Settings: true,
		},
	}
}

// DefaultSize returns the default size of a plan's shop. For full, it is the size that the
// targets are set for.
func DefaultSize(plan string) int64 {
	switch plan {
	case "smoke":
		return MB
	case "full":
		return 766 * MB
	}
	return 64 * MB
}

// jobs is the number of parallel jobs wherever it is not compared.
func (p Plan) jobs() int {
	if len(p.Jobs) == 1 {
		return p.Jobs[0]
	}
	return runtime.NumCPU()
}

// overrides are settings of the command line that override a plan's. Empty ones do not.
type overrides struct {
	jobs, workers    []int
	blocks, profiles []string
	storage          []string
}

// The block sizes that pgzip accepts.
const (
	minBlock = 32 << 10
	maxBlock = 64 << 20
)

// with returns the plan with the given overrides. Its error names the flag.
func (p Plan) with(k overrides) (Plan, error) {
	for _, list := range []struct {
		flag    string
		numbers []int
	}{{"--jobs", k.jobs}, {"--compress-workers", k.workers}} {
		for i, n := range list.numbers {
			if n < 1 || slices.Contains(list.numbers[:i], n) {
				return p, fmt.Errorf("%s %d: want numbers of at least 1, each once", list.flag, n)
			}
		}
	}
	for i, name := range k.profiles {
		if !slices.Contains(profileNames(), name) || slices.Contains(k.profiles[:i], name) {
			return p, fmt.Errorf("--profiles %q: want some of %s, each once", name, strings.Join(profileNames(), ", "))
		}
	}
	if len(k.profiles) > 0 {
		p.Profiles = k.profiles
	}
	for _, text := range k.blocks {
		n, err := cli.ParseSize(text)
		if err != nil || n < minBlock || n > maxBlock || slices.Contains(p.Blocks, int(n)) {
			return p, fmt.Errorf("--block-size %q: want sizes from 32KB to 64MB, each once", text)
		}
		p.Blocks = append(p.Blocks, int(n))
	}
	for i, s := range k.storage {
		if !slices.Contains(storages(), s) || slices.Contains(k.storage[:i], s) {
			return p, fmt.Errorf("--storage %q: want some of %s, each once", s, strings.Join(storages(), ", "))
		}
	}
	p.Jobs, p.Workers, p.Storage = k.jobs, k.workers, k.storage
	return p, nil
}
