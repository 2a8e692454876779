// Package rulercmd is the command line of weir bench, profile, report and doctor.
package rulercmd

import (
	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Bench is the benchmark of a product.
type Bench = suite.Bench

// Verbs returns the verbs of the ruler, with the benchmarks of products.
func Verbs(benches ...Bench) []*cobra.Command {
	verbs := []*cobra.Command{newBenchCommand(benches), newProfileCommand(), newReportCommand(benches), newDoctorCommand()}
	for _, b := range benches {
		verbs = append(verbs, b.Other...)
	}
	return verbs
}
