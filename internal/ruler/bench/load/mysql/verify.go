package myload

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench/load"
)

// Verify reads the whole table over its own connection, which must bypass what is being tested,
// and compares it with the clients of the run: each acknowledged row exists once, with the
// client's own values, under the insert id that the client was told. If two clients were told
// the same id, one row has another id than its client was told.
func Verify(ctx context.Context, dsn string, w load.Insert, o *load.Outcome) (*load.Audit, error) {
	s, err := open(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to verify: %w", err)
	}
	defer s.Close(ctx)
	v := newVerifier(w, o)
	if err := s.rows(ctx, "SELECT id, value, created_at FROM "+w.TableName(), v.row); err != nil {
		return nil, fmt.Errorf("read %s to verify: %w", w.TableName(), err)
	}
	return v.finish()
}

// Count returns how many updates the table of a workload has, over its own connection.
func Count(ctx context.Context, dsn string, w load.Update) (sum int64, err error) {
	s, err := open(ctx, dsn)
	if err != nil {
		return 0, fmt.Errorf("connect to verify: %w", err)
	}
	defer s.Close(ctx)
	if err := s.rows(ctx, "SELECT SUM(value) FROM "+w.TableName(), func(columns [][]byte) (err error) {
		sum, err = strconv.ParseInt(string(columns[0]), 10, 64)
		return err
	}); err != nil {
		return 0, fmt.Errorf("read %s to verify: %w", w.TableName(), err)
	}
	return sum, nil
}

// verifier compares rows with the clients' answers.
type verifier struct {
	checker *load.Checker
	ids     [][]uint64 // by client and operation
	guarded bool
	seeds   int // how many of the table's initial rows were found
}

func newVerifier(w load.Insert, o *load.Outcome) *verifier {
	v := &verifier{checker: load.NewChecker(w, o.Ledger), guarded: w.HasGuard(), ids: make([][]uint64, len(o.Clients))}
	for i, c := range o.Clients {
		if c, ok := c.(*client); ok {
			v.ids[i] = c.ids
		}
	}
	return v
}

func (v *verifier) row(columns [][]byte) error {
	id, err1 := strconv.ParseUint(string(columns[0]), 10, 64)
	client, err2 := strconv.ParseInt(string(columns[1]), 10, 64)
	n, err3 := strconv.ParseInt(string(columns[2]), 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("row %q is not an id, a client and a number", columns)
	}
	if v.guarded && n == seedTime && client < 0 && client >= -seeds {
		v.seeds++ // its unique key allows it once
		return nil
	}
	if !v.checker.Row(client, n) {
		return nil
	}
	// An operation that was never answered has no id to compare.
	if told := v.ids[client]; n < int64(len(told)) && told[n] != 0 && told[n] != id {
		v.checker.WrongID(client, n, told[n], id)
	}
	return nil
}

func (v *verifier) finish() (*load.Audit, error) {
	if v.guarded && v.seeds != seeds {
		return nil, fmt.Errorf("%d of the %d initial rows are left", v.seeds, seeds)
	}
	return v.checker.Finish(), nil
}
