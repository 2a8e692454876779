package mysql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
)

// part is a range of a table's rows: those whose key is at least from and below to. Both are
// SQL literals, one for each column of the key; an empty one is open.
type part struct {
	number   int
	from, to []string
	where    string // "" for the whole table
}

// key is the index by which a table is read in ranges.
type key struct {
	name    string
	columns []column
}

// integers are the types whose ranges can be halved.
var integers = []string{"tinyint", "smallint", "mediumint", "int", "bigint"}

// ordered are the types whose literals sort as their columns do. ENUM, SET and FLOAT do not.
var ordered = append([]string{"decimal", "char", "varchar", "binary", "varbinary", "date", "datetime", "timestamp"}, integers...)

// A divider splits tables into parts that are read concurrently.
type divider struct {
	*runner
	chunk int64 // approximate size of a part in bytes
}

// divide decides in which parts a table is read. It splits tables of more than one and a half
// chunks by their primary key, or a unique one.
func (r divider) divide(ctx context.Context, t *table) error {
	t.parts = []part{{number: 1}}
	if t.bytes <= r.chunk+r.chunk/2 || t.rows < 2 {
		return nil
	}
	k, err := r.key(ctx, t)
	if err != nil || k == nil {
		return err
	}
	t.key = k.list()
	target := max(1, int64(float64(t.rows)*float64(r.chunk)/float64(t.bytes)))
	old := r.earlier(t, k)
	var from []string
	first := 1
	if len(old) > 0 {
		last := old[len(old)-1]
		from, first = last.to, last.number+1
	}
	var bounds [][]string
	if len(old) == 0 || from != nil {
		if bounds, err = r.bounds(ctx, t, k, from, target); err != nil {
			return fmt.Errorf("divide table %s: %w", t.fullName(), err)
		}
	}
	t.parts = old
	if len(old) == 0 || from != nil {
		for _, to := range append(bounds, nil) {
			t.parts = append(t.parts, part{number: first, from: from, to: to})
			from, first = to, first+1
		}
	}
	for i := range t.parts {
		t.parts[i].where = k.where(t.parts[i])
	}
	return nil
}

// key returns the index by which ranges are cheap and exact; nil if there is none.
func (r divider) key(ctx context.Context, t *table) (*key, error) {
	var keys []*key
	bad := map[string]bool{}
	err := r.main.QueryNamed(ctx, `SELECT index_name AS i, column_name AS c, sub_part AS part, nullable AS nullable, index_type AS type, collation AS direction
		FROM information_schema.statistics WHERE table_schema = `+my.Literal(t.db)+` AND table_name = `+my.Literal(t.name)+`
		AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index`, func(row map[string]string) error {
		name := row["i"]
		if len(keys) == 0 || keys[len(keys)-1].name != name {
			keys = append(keys, &key{name: name})
		}
		k := keys[len(keys)-1]
		i := slices.IndexFunc(t.columns, func(c column) bool { return c.name == row["c"] })
		if i < 0 || row["part"] != "" || row["nullable"] == "YES" || row["type"] != "BTREE" || row["direction"] != "A" || !slices.Contains(ordered, t.columns[i].dataType) {
			bad[name] = true
		}
		if !bad[name] {
			k.columns = append(k.columns, t.columns[i])
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list keys of table %s: %w", t.fullName(), err)
	}
	for _, k := range keys {
		if len(k.columns) > 0 { // a prefix of a key suffices
			return k, nil
		}
	}
	return nil, nil
}

// bounds returns where parts of about target rows begin, after from.
func (r divider) bounds(ctx context.Context, t *table, k *key, from []string, target int64) ([][]string, error) {
	if len(k.columns) == 1 && slices.Contains(integers, k.columns[0].dataType) {
		return r.halve(ctx, t, k, from, target)
	}
	return r.walk(ctx, t, k, from, target)
}

// walk steps through the index. It reads all of it, which costs a fraction of reading the rows.
func (r divider) walk(ctx context.Context, t *table, k *key, from []string, target int64) ([][]string, error) {
	var bounds [][]string
	for {
		var found []string
		sql := fmt.Sprintf("SELECT %s FROM %s FORCE INDEX (%s) %s ORDER BY %s LIMIT 1 OFFSET %d",
			k.list(), t.sql(), my.Ident(k.name), k.where(part{from: from}), k.list(), target)
		err := r.main.Query(ctx, sql, func(row []string) error {
			for i, v := range row {
				found = append(found, k.columns[i].literal(v))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if found == nil || slices.Equal(found, from) {
			// More than target rows share this prefix of the key. Rows after it may exist; the
			// last part has them.
			return bounds, nil
		}
		bounds = append(bounds, found)
		from = found
	}
}

// halve divides the numbers between the smallest and the largest key until the server estimates
// that no part has many more rows than intended.
func (r divider) halve(ctx context.Context, t *table, k *key, from []string, target int64) ([][]string, error) {
	col := my.Ident(k.columns[0].name)
	row, err := r.main.Row(ctx, fmt.Sprintf("SELECT MIN(%s), MAX(%s) FROM %s %s", col, col, t.sql(), k.where(part{from: from})))
	if err != nil {
		return nil, err
	}
	low, okLow := new(big.Int).SetString(row[0], 10)
	high, okHigh := new(big.Int).SetString(row[1], 10)
	if !okLow || !okHigh {
		return nil, nil // no rows
	}
	var bounds [][]string
	var split func(low, high *big.Int) error // for low <= key < high
	split = func(low, high *big.Int) error {
		width := new(big.Int).Sub(high, low)
		if width.Cmp(big.NewInt(2)) < 0 {
			return nil
		}
		rows, err := r.estimate(ctx, t, k, low, high)
		if err != nil || rows <= target+target/2 {
			return err
		}
		middle := new(big.Int).Add(low, width.Rsh(width, 1))
		if err := split(low, middle); err != nil {
			return err
		}
		bounds = append(bounds, []string{middle.String()})
		return split(middle, high)
	}
	if err := split(low, high.Add(high, big.NewInt(1))); err != nil {
		return nil, err
	}
	return bounds, nil
}

// estimate queries the optimizer's estimate of the number of rows in a range; the optimizer
// only looks at the ends of the range in the index. With FORCE INDEX, MySQL would not look at
// all.
func (r divider) estimate(ctx context.Context, t *table, k *key, low, high *big.Int) (rows int64, err error) {
	sql := fmt.Sprintf("EXPLAIN FORMAT=TRADITIONAL SELECT 1 FROM %s USE INDEX (%s) %s", t.sql(), my.Ident(k.name),
		k.where(part{from: []string{low.String()}, to: []string{high.String()}}))
	err = r.main.QueryNamed(ctx, sql, func(row map[string]string) error {
		if _, ok := row["rows"]; !ok {
			return errors.New("EXPLAIN says nothing of rows")
		}
		rows = number(row["rows"])
		return nil
	})
	return rows, err
}

func (k *key) list() string {
	names := make([]string, len(k.columns))
	for i, c := range k.columns {
		names[i] = c.name
	}
	return my.Idents(names)
}

// literal formats a value of the column, which came in the column's character set.
func (c column) literal(v string) string {
	switch c.dataType {
	case "binary", "varbinary":
		return my.Hex(v)
	case "char", "varchar":
		return "_" + c.charset + " " + my.Hex(v)
	case "date", "datetime", "timestamp":
		return "'" + v + "'"
	}
	return v
}

// where returns the condition of a part, with WHERE; "" if there is none.
func (k *key) where(p part) string {
	var conditions []string
	if p.from != nil {
		conditions = append(conditions, k.compare(">", ">=", p.from))
	}
	if p.to != nil {
		conditions = append(conditions, k.compare("<", "<", p.to))
	}
	if len(conditions) == 0 {
		return ""
	}
	return "WHERE " + strings.Join(conditions, " AND ")
}

// compare returns a comparison of the key with values, column by column: servers do not use
// indexes for comparisons of rows. strict is for all columns except the last.
func (k *key) compare(strict, last string, values []string) string {
	n := min(len(values), len(k.columns)) - 1
	sql := my.Ident(k.columns[n].name) + " " + last + " " + values[n]
	for i := n - 1; i >= 0; i-- {
		c := my.Ident(k.columns[i].name)
		// The first condition is redundant, except to the optimizer.
		sql = fmt.Sprintf("%s %s= %s AND (%s %s %s OR (%s = %s AND %s))", c, strict, values[i], c, strict, values[i], c, values[i], sql)
	}
	return "(" + sql + ")"
}

// Attributes of chunks of rows.
const (
	attrKey  = "key"
	attrFrom = "from"
	attrTo   = "to"
)

// attributes describe a part for a run that resumes this one.
func (p part) attributes(k string) map[string]string {
	if p.from == nil && p.to == nil {
		return nil
	}
	a := map[string]string{attrKey: k}
	for name, values := range map[string][]string{attrFrom: p.from, attrTo: p.to} {
		if values != nil {
			text, err := json.Marshal(values)
			if err == nil { // strings always succeed
				a[name] = string(text)
			}
		}
	}
	return a
}

// earlier returns the parts that an earlier run has read, and those between them: a part keeps
// its number and its bounds, so that its chunk can be compared. Nil if there are none, or they
// are of another key.
func (r divider) earlier(t *table, k *key) []part {
	var found []part
	for _, c := range r.w.Resumed() {
		if c.Kind != archive.KindData || c.Database != t.db || c.Table != t.name {
			continue
		}
		p := part{number: c.Part}
		if c.Attributes[attrKey] != k.list() || !decode(c.Attributes[attrFrom], &p.from) || !decode(c.Attributes[attrTo], &p.to) {
			return nil
		}
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b part) int { return a.number - b.number })
	var out []part
	var from []string
	at := 1
	for _, p := range found {
		if !slices.Equal(from, p.from) {
			if p.number <= at {
				return nil
			}
			out = append(out, part{number: at, from: from, to: p.from})
		} else if p.number < at {
			return nil
		}
		out = append(out, p)
		from, at = p.to, p.number+1
		if from == nil {
			break
		}
	}
	return out
}

func decode(text string, values *[]string) bool {
	return text == "" || json.Unmarshal([]byte(text), values) == nil
}

// dataPath returns the path of a part's chunk.
func (r *runner) dataPath(t *table, p part) string {
	return archive.DataPath(t.db, "", t.name, p.number, r.content(t))
}

// content returns the format of a table's rows. Statements take one line each, which a name
// with a newline would break; and a table without columns has none.
func (r *runner) content(t *table) string {
	broken := slices.ContainsFunc(append(slices.Clone(t.layout.Columns), t.name), func(n string) bool { return strings.Contains(n, "\n") })
	if r.opts.Inserts && len(t.layout.Columns) > 0 && !broken {
		return "sql"
	}
	return "tsv"
}

func (p part) id(t *table) string { return t.fullName() + " part " + strconv.Itoa(p.number) }
