package clitest

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/testkit"
)

// failing notes failures instead of failing its test.
type failing struct {
	*testing.T
	said strings.Builder
}

func (f *failing) Errorf(format string, args ...any) { f.said.WriteString(format) }

// Fatalf ends what runs, as the end of a test's goroutine would.
func (f *failing) Fatalf(format string, args ...any) {
	fmt.Fprintf(&f.said, format, args...)
	panic(f)
}

// A verb that does not end fails its test, which goes on: with one that ends when it is canceled,
// and with one that does not.
func TestVerbsThatDoNotEnd(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { testEndless(t, deaf) })
	}
}

func testEndless(t *testing.T, deaf bool) {
	stop := make(chan struct{})
	program := &Program{Verbs: func() []*cobra.Command {
		return []*cobra.Command{{Use: "hang", RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.Println("here")
			ctx := cmd.Context()
			if deaf {
				ctx = context.WithoutCancel(ctx)
			}
			select {
			case <-ctx.Done():
			case <-stop:
			}
			return nil
		}}}
	}}
	f := &failing{T: t}
	r := program.Call(f, "hang")
	close(stop)
	if said := f.said.String(); r.Code != overtime || !strings.Contains(said, "still running after") || strings.Contains(said, "although") != deaf {
		t.Errorf("deaf %v: %v, and the test is told %q", deaf, r, said)
	}
}

// Nobody waits for a log without end.
func TestAwaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines, f := newBacklog(), &failing{T: t}
		_, _ = io.WriteString(lines, `{"msg":"one"}`+"\n")
		log := NewLog(f, lines)
		log.Await("one")
		begin := time.Now()
		func() {
			defer func() {
				if r := recover(); r != f {
					t.Errorf("Await ended with %v", r)
				}
			}()
			log.Await("two")
		}()
		want := fmt.Sprintf("no \"two\" within %s in the log", testkit.Patience)
		if took, said := time.Since(begin), f.said.String(); took != testkit.Patience || !strings.HasPrefix(said, want) {
			t.Errorf("after %s: %s; want %s", took, said, want)
		}
	})
}
