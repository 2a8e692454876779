package myload

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// work is a load.Workload in MySQL's terms.
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
		return nil, fmt.Errorf("no workload for MySQL: %T", w)
	}
}

// operation is one execution of a statement with one or two arguments.
type operation struct {
	args  [2]int64
	nargs int
	want  answer
	note  string // at the end of the OK packet, "" for none
}

// answer is the relevant part of a statement's reply.
type answer struct {
	code     uint16 // of an error; 0 for success
	affected uint64
	insertID uint64 // expected: 1 for any, 0 for none
	rows     int
	value    int64 // first column of the first row
	status   uint16
	warnings uint16
}

// statusChecked are the status flags that an answer must have as expected. The others only say
// which index was used and the like.
const statusChecked = uint16(mywire.StatusAutocommit | mywire.StatusInTrans | mywire.StatusMoreResults | mywire.StatusCursorExists)

// wrong says how got differs from what is expected; "" if it does not. detail is the text of
// got's error, or the note in its OK.
func (op *operation) wrong(got *answer, detail string) string {
	want := &op.want
	switch {
	case want.code != got.code:
		return fmt.Sprintf("error %d instead of %d", got.code, want.code)
	case want.code != 0:
		if entry := op.duplicate(); !strings.HasPrefix(detail, entry) {
			return fmt.Sprintf("error without %q", entry)
		}
		return ""
	case want.affected != got.affected:
		return fmt.Sprintf("%d rows affected instead of %d", got.affected, want.affected)
	case (want.insertID != 0) != (got.insertID != 0):
		return fmt.Sprintf("insert id %d", got.insertID)
	case want.rows != got.rows:
		return fmt.Sprintf("%d rows instead of %d", got.rows, want.rows)
	case want.value != got.value:
		return fmt.Sprintf("value %d instead of %d", got.value, want.value)
	case got.warnings != 0:
		return fmt.Sprintf("%d warnings", got.warnings)
	case want.status != got.status&statusChecked:
		return fmt.Sprintf("status %#x instead of %#x", got.status&statusChecked, want.status)
	case op.note == "" && detail != "":
		return "a note:"
	case !strings.HasSuffix(detail, op.note):
		return fmt.Sprintf("no note %q:", op.note)
	default:
		return ""
	}
}

// duplicate is the start of the error text that a failing insert must get.
func (op *operation) duplicate() string {
	return "Duplicate entry '" + strconv.FormatInt(op.args[0], 10) + "-" + strconv.FormatInt(op.args[1], 10) + "'"
}

// seeds is how many rows a guarded table has from the start, for failing inserts to collide
// with. They come before all others in the index, so that locks on existing rows do not affect
// inserted ones.
const seeds = 256

// insertWork inserts into (id bigint auto_increment primary key, value int, created_at bigint).
// Operations that fail repeat a seed's unique key: error 1062, which names the key.
type insertWork load.Insert

func (w insertWork) setup() []string {
	table := load.Insert(w).TableName()
	guard := ""
	if load.Insert(w).HasGuard() {
		guard = ", UNIQUE KEY guard (value, created_at)"
	}
	out := []string{
		"DROP TABLE IF EXISTS " + table,
		"CREATE TABLE " + table + " (id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, value int, created_at bigint" + guard + ") ENGINE=InnoDB",
	}
	if guard == "" {
		return out
	}
	b := []byte("INSERT INTO " + table + " (value, created_at) VALUES ")
	for i := range int64(seeds) {
		b = appendPair(b, i, -1-i, load.SeedTime)
	}
	return append(out, string(b))
}

var insertOne = answer{affected: 1, insertID: 1, status: uint16(mywire.StatusAutocommit)}

func (w insertWork) operation(client int, n int64) operation {
	op := operation{args: [2]int64{int64(client), n}, nargs: 2, want: insertOne}
	if load.Insert(w).Fails(client, n) {
		op.args = [2]int64{-1 - (int64(client)*31+n)%seeds, load.SeedTime}
		op.want = answer{code: mywire.ErrDuplicateKey}
	}
	return op
}

type selectWork load.Select

// fillRows is how many rows one statement inserts to fill a table: 10,000 rows of about twenty
// bytes are far below max_allowed_packet, which is 16 MB by default.
const fillRows = 10_000

func (w selectWork) setup() []string {
	s := load.Select(w)
	return keyed(s.TableName(), s.KeyCount(), load.ValueOf)
}

// keyed creates a table with the keys 1 to n and a value for each.
func keyed(table string, n int64, value func(key int64) int64) []string {
	out := []string{
		"DROP TABLE IF EXISTS " + table,
		"CREATE TABLE " + table + " (id int NOT NULL PRIMARY KEY, value int NOT NULL) ENGINE=InnoDB",
	}
	for first := int64(1); first <= n; first += fillRows {
		b := []byte("INSERT INTO " + table + " VALUES ")
		for key := first; key < min(first+fillRows, n+1); key++ {
			b = appendPair(b, key-first, key, value(key))
		}
		out = append(out, string(b))
	}
	return append(out, "ANALYZE TABLE "+table)
}

// appendPair appends the i-th tuple of a statement that inserts several.
func appendPair(b []byte, i, x, y int64) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	b = strconv.AppendInt(append(b, '('), x, 10)
	b = strconv.AppendInt(append(b, ','), y, 10)
	return append(b, ')')
}

func (w selectWork) operation(client int, n int64) operation {
	key := load.Select(w).Key(client, n)
	return operation{args: [2]int64{key}, nargs: 1, want: answer{rows: 1, value: load.ValueOf(key), status: uint16(mywire.StatusAutocommit)}}
}

// updateWork increments values in (id int primary key, value int).
type updateWork load.Update

func (w updateWork) setup() []string {
	u := load.Update(w)
	return keyed(u.TableName(), u.KeyCount(), func(int64) int64 { return 0 })
}

func (w updateWork) operation(client int, n int64) operation {
	return operation{args: [2]int64{load.Update(w).Key(client, n)}, nargs: 1, want: answer{affected: 1, status: uint16(mywire.StatusAutocommit)}, note: "Rows matched: 1  Changed: 1  Warnings: 0"}
}
