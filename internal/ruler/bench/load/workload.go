package load

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Workload is an Insert, a Select or an Update; the engine's package encodes it in its
// protocol.
type Workload interface {
	// Statement is the statement's text, split at its arguments.
	Statement() Template
}

// Template is a statement's text, split at its arguments.
type Template []string

// Text returns the statement with mark(i) as its i-th argument, from 0.
func (t Template) Text(mark func(i int) string) string {
	var b strings.Builder
	b.WriteString(t[0])
	for i, piece := range t[1:] {
		b.WriteString(mark(i))
		b.WriteString(piece)
	}
	return b.String()
}

// Append appends the statement with the arguments as literals.
func (t Template) Append(b []byte, args ...int64) []byte {
	b = append(b, t[0]...)
	for i, piece := range t[1:] {
		b = strconv.AppendInt(b, args[i], 10)
		b = append(b, piece...)
	}
	return b
}

// Insert writes one row per operation into a table with a serial key, value and created_at:
// value is the client, created_at its sequence number, so that a Checker can find out
// afterwards what happened to each.
type Insert struct {
	// Table is recreated at the start of each run. Default: "test".
	Table string
	// Hint is put before the statement, such as "/* batch:10 */". Default: none.
	Hint string
	// FailPercent of the operations violate a constraint of the table and must be answered with
	// its error. They have the same text, so a proxy that groups statements puts them into the
	// same groups. Default: 0.
	FailPercent float64
	// Guarded adds that constraint to the table even if no operation violates it, for
	// comparison with a run in which some do. Default: only if some do.
	Guarded bool
}

// TableName is Table or its default.
func (w Insert) TableName() string { return cmp.Or(w.Table, "test") }

// HasGuard reports whether the table has a constraint to violate.
func (w Insert) HasGuard() bool { return w.Guarded || w.FailPercent > 0 }

// Statement implements Workload; its arguments are value and created_at.
func (w Insert) Statement() Template {
	return Template{withHint(w.Hint, "INSERT INTO "+w.TableName()+" (value, created_at) VALUES ("), ", ", ")"}
}

// Fails reports whether a client's n-th operation must fail. It depends only on the operation's
// identity, so that a Checker needs no log.
func (w Insert) Fails(client int, n int64) bool {
	return w.FailPercent > 0 && float64(mix(uint64(client)<<40^uint64(n))%10_000) < w.FailPercent*100
}

// Select reads one row by primary key. The value in each row follows from its key, so an answer
// meant for another client is noticed.
type Select struct {
	// Table is recreated at the start of each run. Default: "test_keys".
	Table string
	// Keys is the number of rows. Default: 100,000.
	Keys int
	// Hint is put before the statement. Default: none.
	Hint string
}

// TableName is Table or its default.
func (w Select) TableName() string { return cmp.Or(w.Table, "test_keys") }

// KeyCount is Keys or its default. The keys are 1 to KeyCount.
func (w Select) KeyCount() int64 { return int64(cmp.Or(w.Keys, 100_000)) }

// Statement implements Workload; its argument is the key.
func (w Select) Statement() Template {
	return Template{withHint(w.Hint, "SELECT value FROM "+w.TableName()+" WHERE id = "), ""}
}

// Key returns the key that a client's n-th operation looks up.
func (w Select) Key(client int, n int64) int64 {
	return int64(mix(uint64(client)<<40^uint64(n))%uint64(w.KeyCount())) + 1
}

// ValueOf returns the value in the row of a key.
func ValueOf(key int64) int64 { return key*7 + 3 }

// Update adds 1 to the value of one row by primary key. All values start at 0, so that their
// sum is the number of updates.
type Update struct {
	// Table is recreated at the start of each run. Default: "test_counts".
	Table string
	// Keys is the number of rows. Default: 100,000.
	Keys int
	// Hint is put before the statement. Default: none.
	Hint string
}

// TableName is Table or its default.
func (w Update) TableName() string { return cmp.Or(w.Table, "test_counts") }

// KeyCount is Keys or its default. The keys are 1 to KeyCount.
func (w Update) KeyCount() int64 { return Select{Keys: w.Keys}.KeyCount() }

// Statement implements Workload; its argument is the key.
func (w Update) Statement() Template {
	return Template{withHint(w.Hint, "UPDATE "+w.TableName()+" SET value = value + 1 WHERE id = "), ""}
}

// Key returns the key that a client's n-th operation updates.
func (w Update) Key(client int, n int64) int64 { return Select{Keys: w.Keys}.Key(client, n) }

// Check compares the sum of all values after a run with the answers of the run: an acknowledged
// update counts once, an unanswered one once or not at all.
func (w Update) Check(sum int64, o *Outcome) error {
	if least, most := o.TotalOps, o.TotalOps+o.Ledger.Unknown(); sum < least || sum > most {
		return fmt.Errorf("%d updates of %s were acknowledged and %d not answered, but %d were applied", least, w.TableName(), most-least, sum)
	}
	return nil
}

// mix is the finaliser of splitmix64 (Steele, Lea, Flood: OOPSLA 2014): it maps close numbers
// to unrelated ones.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func withHint(hint, sql string) string {
	if hint == "" {
		return sql
	}
	return hint + " " + sql
}
