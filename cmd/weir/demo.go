//go:build demo

package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	proxycmd "github.com/weirdb/weir/internal/proxy/cmd"
	proxybench "github.com/weirdb/weir/internal/ruler/bench/proxy"
)

// verbs are the verbs of the proxy and the demo. `make run` builds this first: it has a quarter
// of weir's code, so that a new user sees a result before the rest is built.
func verbs() []*cobra.Command {
	verbs := slices.Concat(proxycmd.Verbs(), proxybench.Bench(nil).Other)
	for _, name := range []string{"backup", "bench", "doctor", "kv", "lab", "outbox", "profile", "report", "restore"} {
		verbs = append(verbs, &cobra.Command{
			Use:                name,
			Short:              "Not in this build",
			Hidden:             true,
			DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				return fmt.Errorf("weir %s is not in this build, which was made with the tag demo for weir demo: go build -o bin/weir ./cmd/weir", name)
			},
		})
	}
	return verbs
}
