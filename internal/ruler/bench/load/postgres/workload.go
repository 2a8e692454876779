package pgload

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench/load"
)

// work is a load.Workload in PostgreSQL's terms.
type work interface {
	// operation returns the arguments of a client's n-th operation and the expected answer.
	operation(client int, n int64) operation
	// setup lists the statements that recreate and fill the tables.
	setup() []string
}

func workOf(w load.Workload) (work, error) {
	switch w := w.(type) {
	case load.Insert:
		return insertWork(w), nil
	case load.Select:
		return selectWork(w), nil
	case load.Update:
		return updateWork(w), nil
	default:
		return nil, fmt.Errorf("no workload for PostgreSQL: %T", w)
	}
}

// operation is one execution of a statement with one or two arguments.
type operation struct {
	args  [2]int64
	nargs int
	want  answer
}

// answer is the relevant part of a statement's reply.
type answer struct {
	code  [5]byte  // SQLSTATE, zero for success
	tag   [24]byte // command tag, truncated
	value int64    // first column of the first row, if it is a number
	rows  int
}

// wrong says how got differs from what is expected; "" if it does not.
func (want *answer) wrong(got *answer) string {
	switch {
	case want.code != got.code:
		return fmt.Sprintf("SQLSTATE %q instead of %q", trimZero(got.code[:]), trimZero(want.code[:]))
	case want.code != [5]byte{}:
		return ""
	case want.tag != got.tag:
		return fmt.Sprintf("tag %q instead of %q", trimZero(got.tag[:]), trimZero(want.tag[:]))
	case want.rows != got.rows:
		return fmt.Sprintf("%d rows instead of %d", got.rows, want.rows)
	case want.value != got.value:
		return fmt.Sprintf("value %d instead of %d", got.value, want.value)
	default:
		return ""
	}
}

func trimZero(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }

func tagOf(s string) (t [24]byte) {
	copy(t[:], s)
	return t
}

// insertWork inserts into (id bigserial primary key, value int, created_at bigint). Operations
// that fail violate a CHECK constraint: SQLSTATE 23514.
type insertWork load.Insert

func (w insertWork) setup() []string {
	table, check := load.Insert(w).TableName(), ""
	if load.Insert(w).HasGuard() {
		check = " CHECK (created_at >= 0)"
	}
	return []string{
		"DROP TABLE IF EXISTS " + table,
		"CREATE TABLE " + table + " (id bigserial PRIMARY KEY, value int, created_at bigint" + check + ")",
	}
}

var insertOne = tagOf("INSERT 0 1")

func (w insertWork) operation(client int, n int64) operation {
	op := operation{args: [2]int64{int64(client), n}, nargs: 2}
	if load.Insert(w).Fails(client, n) {
		op.args[1] = -n - 1
		op.want.code = [5]byte{'2', '3', '5', '1', '4'}
		return op
	}
	op.want.tag = insertOne
	return op
}

type selectWork load.Select

func (w selectWork) setup() []string {
	s := load.Select(w)
	return []string{
		"DROP TABLE IF EXISTS " + s.TableName(),
		"CREATE TABLE " + s.TableName() + " (id int PRIMARY KEY, value int)",
		"INSERT INTO " + s.TableName() + " SELECT i, i * 7 + 3 FROM generate_series(1, " + strconv.FormatInt(s.KeyCount(), 10) + ") i",
		"VACUUM ANALYZE " + s.TableName(),
	}
}

var selectOne = tagOf("SELECT 1")

func (w selectWork) operation(client int, n int64) operation {
	key := load.Select(w).Key(client, n)
	return operation{args: [2]int64{key}, nargs: 1, want: answer{tag: selectOne, value: load.ValueOf(key), rows: 1}}
}

// updateWork increments values in (id int primary key, value int).
type updateWork load.Update

func (w updateWork) setup() []string {
	u := load.Update(w)
	return []string{
		"DROP TABLE IF EXISTS " + u.TableName(),
		"CREATE TABLE " + u.TableName() + " (id int PRIMARY KEY, value int NOT NULL)",
		"INSERT INTO " + u.TableName() + " SELECT i, 0 FROM generate_series(1, " + strconv.FormatInt(u.KeyCount(), 10) + ") i",
		"VACUUM ANALYZE " + u.TableName(),
	}
}

var updateOne = tagOf("UPDATE 1")

func (w updateWork) operation(client int, n int64) operation {
	return operation{args: [2]int64{load.Update(w).Key(client, n)}, nargs: 1, want: answer{tag: updateOne}}
}
