package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestFlagTable shows arguments and defaults as a reader writes them.
func TestFlagTable(t *testing.T) {
	t.Parallel()
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Duration("age", 168*time.Hour, "greatest age")
	f.String("log-file", "", "where to log")
	f.String("profile", "auto", "how hard to work")
	f.Duration("wait", time.Minute, "longest wait")
	f.String("verify", "counts", "what to compare")
	f.Lookup("verify").NoOptDefVal = "rows"
	f.IntSlice("workers", []int{1, 4}, "numbers of workers")
	const want = "--age DURATION greatest age (default 168h)" +
		" --log-file FILE where to log" +
		" --profile TEXT how hard to work (default auto)" +
		" --verify[=TEXT] what to compare (default counts)" +
		" --wait DURATION longest wait (default 1m)" +
		" --workers N,... numbers of workers (default 1,4)"
	if got := strings.Join(strings.Fields(FlagTable(f, nil)), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
