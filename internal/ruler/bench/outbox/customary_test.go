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
