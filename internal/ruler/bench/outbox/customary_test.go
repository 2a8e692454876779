package outboxbench

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestDeadlocksAreTriedAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("1213"), false},
		{errors.Join(fmt.Errorf("mark as done: %w", &mysql.MySQLError{Number: 1213}), nil), true},
		{&mysql.MySQLError{Number: 1062}, false},
		{fmt.Errorf("mark as done: %w", &pgconn.PgError{Code: "40P01"}), true},
		{&pgconn.PgError{Code: "23505"}, false},
	} {
		if got := deadlocked(tt.err); got != tt.want {
			t.Errorf("%v: %v", tt.err, got)
		}
	}
}

// TestSettledPages: what the server does beside a claim is not counted.
func TestSettledPages(t *testing.T) {
	t.Parallel()
	broken := errors.New("gone")
	for _, tt := range []struct {
		what  string
		pages []int64 // of each claim, of ten rows; the last one of all that follow
		rows  int
		err   error
		want  float64
		calls int
	}{
		{"nothing else goes on", []int64{30}, 10, nil, 3, 2},
		{"a purge ends", []int64{900, 420, 30}, 10, nil, 3, 4},
		{"a purge begins", []int64{30, 900, 30}, 10, nil, 3, 3},
		{"there is always something", []int64{50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40, 51, 52, 53, 54, 55, 56, 57, 58, 59}, 10, nil, 4, 20},
		{"no row", []int64{30}, 0, nil, 0, 1},
		{"an error", []int64{30}, 10, broken, 0, 1},
	} {
		calls := 0
		got, err := settledPages(func() (int64, int, error) {
			calls++
			return tt.pages[min(calls, len(tt.pages))-1], tt.rows, tt.err
		})
		if got != tt.want || calls != tt.calls || !errors.Is(err, tt.err) {
			t.Errorf("%s: %g pages after %d claims, %v; want %g after %d", tt.what, got, calls, err, tt.want, tt.calls)
		}
	}
}
