package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// What ends a backup because a standby replays is told with what helps, and nothing else is.
func TestConflictsWithReplay(t *testing.T) {
	for _, c := range []struct {
		standby bool
		code    string
		want    bool
	}{
		{true, "40001", true},
		{false, "40001", false},
		{true, "55P03", false},
	} {
		err := fmt.Errorf("read table t: %w", &pgwire.Error{Code: c.code, Message: "canceling statement due to conflict with recovery"})
		if got := ofReplay(c.standby, err); strings.Contains(got.Error(), "max_standby_streaming_delay") != c.want || pgwire.CodeOf(got) != c.code {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Locks that a deadlock has refused are taken again, as those of tables that are gone.
func TestLocksAreTakenAgain(t *testing.T) {
	for code, want := range map[string]bool{"40P01": true, "42P01": true, "3F000": true, "55P03": false, "42501": false} {
		if got := again(fmt.Errorf("lock tables for reading: %w", &pgwire.Error{Code: code})); got != want {
			t.Errorf("%s: %v", code, got)
		}
	}
}
