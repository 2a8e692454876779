package moves

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
)

const (
	// suspiciousRatio is the compression ratio above which data hides the cost of compression.
	// suspiciousRate is a rate in MB/s that gzip on one processor cannot reach on rows of a
	// database.
	suspiciousRatio = 12
	suspiciousRate  = 250
	// workerShare is the share of its nominal work below which a worker waits for other workers
	// or for a processor.
	workerShare = 0.5
)

// tooCompressible finds data that compresses far better than rows of a database do.
func tooCompressible(r *bench.Result) []bench.Finding {
	var evidence []string
	for _, c := range r.Cases {
		if s, ok := c.Summary["squeeze"]; ok && s.Median >= suspiciousRatio {
			evidence = append(evidence, fmt.Sprintf("%s: %s times smaller", c.Name, bench.Figure(s.Median)))
			continue
		}
		rate, workers := c.Summary["plain_rate"].Median, workersOf(c)
		if strings.Contains(c.Name, "gzip") && workers == 1 && rate > suspiciousRate {
			evidence = append(evidence, fmt.Sprintf("%s: %s MB/s on one processor", c.Name, bench.Figure(rate)))
		}
	}
	return bench.Found(evidence, bench.Finding{
		ID: "hiding-data", Severity: bench.Warn,
		Claim:  "The data hides the cost of compression: it is compressed faster, or becomes smaller, than rows of a database.",
		Advice: "Measure with text and numbers as applications write them, and state their compression ratio.",
	})
}

// workersOf is the factor workers of a case, 0 if it has none.
func workersOf(c *bench.Case) int {
	n, err := strconv.Atoi(c.Factors["workers"])
	if err != nil {
		return 0
	}
	return n
}

// tooManyWorkers finds cases with more workers than processors: by their number, or because
// they do the work of less than half of them.
func tooManyWorkers(r *bench.Result) []bench.Finding {
	var evidence []string
	if jobs, err := strconv.Atoi(r.Experiment.Factors["jobs"]); err == nil && r.Env.Cores > 0 && jobs > r.Env.Cores {
		evidence = append(evidence, fmt.Sprintf("%d jobs on %d processors", jobs, r.Env.Cores))
	}
	for _, c := range r.Cases {
		n := workersOf(c)
		switch {
		case n < 2:
		case r.Env.Cores > 0 && n > r.Env.Cores:
			evidence = append(evidence, fmt.Sprintf("%s: %d workers on %d processors", c.Name, n, r.Env.Cores))
		default:
			for _, o := range bench.LikeBut(r, c, "workers") {
				if workersOf(o) != 1 || o.Rate() == 0 {
					continue
				}
				if times := c.Rate() / o.Rate(); times < workerShare*float64(n) {
					evidence = append(evidence, fmt.Sprintf("%s: %d workers do %.2g times the work of one", c.Name, n, times))
				}
			}
		}
	}
	return bench.Found(evidence, bench.Finding{
		ID: "crowded-workers", Severity: bench.Warn,
		Claim:  "There are more workers than processors for them: their number says nothing about the speed of a processor.",
		Advice: "State the number of processors as well as workers, and the rate of one worker.",
	})
}
