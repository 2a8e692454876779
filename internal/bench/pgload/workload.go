package pgload

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Workload says what each operation is and which answer is right.
type Workload interface {
	// Statement is the text, with $1 and $2 for the arguments.
	Statement() string
	// operation returns the arguments of a client's n-th operation and the
	// answer it must get.
	operation(client int, n int64) operation
	// setup lists the statements that make and fill the tables, anew.
	setup() []string
}

// operation is one execution of a statement with one or two arguments.
type operation struct {
	args  [2]int64
	nargs int
	want  answer
}

// answer is what matters of a statement's reply.
type answer struct {
	code  [5]byte  // SQLSTATE, zero for success
	tag   [24]byte // command tag, cut off
	value int64    // first column of the first row, if it is a number
	rows  int
}

// wrong says how got differs from what is wanted; "" when it does not.
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

// Insert writes one row an operation into (id bigserial primary key, value int,
// created_at bigint): value is the client, created_at its sequence number, so
// that Verify can tell afterwards what became of each.
type Insert struct {
	// Table is replaced at the start of each run. Default: "test".
	Table string
	// Hint is put before the statement, such as "/* batch:10 */". Default: none.
	Hint string
	// FailPercent of the operations violate a CHECK constraint and must be
	// answered with SQLSTATE 23514. They have the same text, so a proxy that
	// gathers statements gets them into the same group. Default: 0.
	FailPercent float64
}

func (w Insert) table() string {
	if w.Table == "" {
		return "test"
	}
	return w.Table
}

// Statement implements Workload.
func (w Insert) Statement() string {
	return withHint(w.Hint, "INSERT INTO "+w.table()+" (value, created_at) VALUES ($1, $2)")
}

func (w Insert) setup() []string {
	check := ""
	if w.FailPercent > 0 {
		check = " CHECK (created_at >= 0)"
	}
	return []string{
		"DROP TABLE IF EXISTS " + w.table(),
		"CREATE TABLE " + w.table() + " (id bigserial PRIMARY KEY, value int, created_at bigint" + check + ")",
	}
}

var insertOne = tagOf("INSERT 0 1")

func (w Insert) operation(client int, n int64) operation {
	op := operation{args: [2]int64{int64(client), n}, nargs: 2}
	if w.fails(client, n) {
		op.args[1] = -n - 1
		op.want.code = [5]byte{'2', '3', '5', '1', '4'}
		return op
	}
	op.want.tag = insertOne
	return op
}

// fails decides by the operation's identity, so that Verify knows without a log.
func (w Insert) fails(client int, n int64) bool {
	return w.FailPercent > 0 && float64(mix(uint64(client)<<40^uint64(n))%10_000) < w.FailPercent*100
}

// Select reads one row by primary key. The value in each row follows from its
// key, so an answer that belongs to another client's question is noticed.
type Select struct {
	// Table is replaced at the start of each run. Default: "test_keys".
	Table string
	// Keys is the number of rows. Default: 100,000.
	Keys int
	Hint string
}

func (w Select) table() string {
	if w.Table == "" {
		return "test_keys"
	}
	return w.Table
}

func (w Select) keys() int64 {
	if w.Keys == 0 {
		return 100_000
	}
	return int64(w.Keys)
}

// Statement implements Workload.
func (w Select) Statement() string {
	return withHint(w.Hint, "SELECT value FROM "+w.table()+" WHERE id = $1")
}

func (w Select) setup() []string {
	return []string{
		"DROP TABLE IF EXISTS " + w.table(),
		"CREATE TABLE " + w.table() + " (id int PRIMARY KEY, value int)",
		"INSERT INTO " + w.table() + " SELECT i, i * 7 + 3 FROM generate_series(1, " + strconv.FormatInt(w.keys(), 10) + ") i",
		"VACUUM ANALYZE " + w.table(),
	}
}

var selectOne = tagOf("SELECT 1")

func (w Select) operation(client int, n int64) operation {
	key := int64(mix(uint64(client)<<40^uint64(n))%uint64(w.keys())) + 1
	return operation{args: [2]int64{key}, nargs: 1, want: answer{tag: selectOne, value: key*7 + 3, rows: 1}}
}

// mix is the finaliser of splitmix64 (Steele, Lea, Flood: OOPSLA 2014): close
// numbers become unrelated ones.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func withHint(hint, sql string) string { return strings.TrimSpace(hint + " " + sql) }
