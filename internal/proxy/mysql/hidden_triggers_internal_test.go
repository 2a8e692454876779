package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A catalogue without the triggers that the DSN's user could not be asked for is loaded again at
// the next polls, but not for ever.
func TestCatalogueWithoutHiddenTriggersIsLoadedAgain(t *testing.T) {
	t.Parallel()
	for missed, want := range map[int]bool{0: false, 1: true, maxFailures: true, maxFailures + 1: false} {
		if k := (&accountCatalogue{l: &loop{}, known: true, missed: missed}); k.outdated() != want {
			t.Errorf("after %d loads without them it is outdated: %v", missed, !want)
		}
	}
}

// The DSN's user is asked again after a lost connection, but not after a timeout: each further
// try would hold up the catalogue for as long.
func TestTimeoutsOfTheDSNsUserAreNotRepeated(t *testing.T) {
	t.Parallel()
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{io.ErrUnexpectedEOF, true},
		{dial(unix.ECONNREFUSED), true},
		{errors.New("what else a server does"), true},
		{dial(unix.ETIMEDOUT), false},
		{dial(os.ErrDeadlineExceeded), false},
		{context.DeadlineExceeded, false},
	} {
		if got := passing(fmt.Errorf("connect: %w", tc.err)); got != tc.want {
			t.Errorf("%v is passing: %v", tc.err, got)
		}
	}
}
