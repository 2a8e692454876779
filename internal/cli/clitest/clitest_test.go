package clitest

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
)

// failing notes failures instead of failing its test.
type failing struct {
	*testing.T
	said strings.Builder
}

func (f *failing) Errorf(format string, args ...any) { f.said.WriteString(format) }

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
	lines := newBacklog()
	_, _ = io.WriteString(lines, `{"msg":"one"}`+"\n")
	log := NewLog(t, lines)
	log.Await("one")
	late := time.AfterFunc(time.Millisecond, func() { _ = lines.Close() })
	defer late.Stop()
	if line, err := log.Lines.ReadString('\n'); err != io.EOF {
		t.Errorf("after the end: %q, %v", line, err)
	}
}
