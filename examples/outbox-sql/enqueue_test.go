// Package outboxsql tests the producers beside it, which write messages by plain
// SQL, in other languages.
package outboxsql

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/stdout"
	"github.com/weirdb/weir/outbox/sqlite"
)

func TestProducersInOtherLanguages(t *testing.T) {
	for _, tt := range []struct {
		program, script, prefix string
		check                   []string
	}{
		{program: "python3", script: "enqueue.py", check: []string{"-c", "import sqlite3"}},
		{program: "php", script: "enqueue.php", prefix: "sqlite:", check: []string{"-r", "exit(in_array('sqlite', PDO::getAvailableDrivers()) ? 0 : 1);"}},
	} {
		t.Run(tt.program, func(t *testing.T) {
			if err := exec.CommandContext(t.Context(), tt.program, tt.check...).Run(); err != nil {
				t.Skipf("%s, with SQLite, is not installed: %v", tt.program, err)
			}
			path := filepath.Join(t.TempDir(), "shop.db")
			store, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if _, err := store.Migrate(t.Context(), outbox.Plan{}); err != nil {
				t.Fatal(err)
			}
			for i := range 2 { // an example is tried more than once
				first := 3 * i
				cmd := exec.CommandContext(t.Context(), tt.program, tt.script, tt.prefix+path)
				cmd.Stderr = os.Stderr
				said, err := cmd.Output()
				if err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("order %d was rolled back with its message: the card was declined\n", first+2); string(said) != want {
					t.Errorf("said %q, want %q", said, want)
				}
				want := fmt.Sprintf("{\"number\":%d}\n{\"number\":%d}\n", first+1, first+3)
				if got := strings.ReplaceAll(relay(t, store), ": ", ":"); got != want {
					t.Errorf("delivered %q, want %q", got, want)
				}
			}
		})
	}
}

// relay returns what is delivered until nothing is pending.
func relay(t *testing.T, store outbox.Store) string {
	t.Helper()
	var out bytes.Buffer
	sink, err := stdout.New(t.Context(), stdout.Options{Format: "payload", To: &out})
	if err != nil {
		t.Fatal(err)
	}
	r, err := outbox.NewRelay(store, sink, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	testkit.Eventually(t, "the table is empty", func() bool {
		status, err := store.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return status.Pending == 0
	})
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return out.String()
}
