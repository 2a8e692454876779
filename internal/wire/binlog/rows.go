package binlog

import (
	"bytes"
	"fmt"
)

// Row holds the values of a row, one for each column of its table.
type Row []Value

// Rows is one row event: the changes of a statement to some rows of one table. Use it like
// this, before the next call of the Reader's Next:
//
//	for rows.Next() {
//		… rows.Before, rows.After …
//	}
//	if err := rows.Err(); err != nil { … }
//
// Rows that are not read cost nothing.
type Rows struct {
	Table  *Table
	Action Action
	// Before is the row that an update or delete found, After the row that an insert or update
	// wrote; the other is empty. Both are valid until Next.
	Before, After Row

	d       decoder
	shape   rowsShape
	found   []byte // columns in the image before; for an insert, after
	made    []byte // columns in the image after an update
	foundN  int    // number of set bits
	madeN   int
	storage [2]Row
	err     error
}

// Next decodes the next row. It returns false if there is none.
func (r *Rows) Next() bool {
	if r.err != nil || len(r.d.b) == 0 {
		return false
	}
	r.d.scratch = r.d.scratch[:0]
	left := len(r.d.b)
	switch r.Action {
	case Insert:
		r.After = r.image(&r.storage[1], r.found, r.foundN, false)
	case Delete:
		r.Before = r.image(&r.storage[0], r.found, r.foundN, false)
	case Update:
		r.Before = r.image(&r.storage[0], r.found, r.foundN, false)
		if r.err == nil {
			r.After = r.image(&r.storage[1], r.made, r.madeN, r.shape.partial)
		}
	}
	if r.err == nil && (r.d.bad || len(r.d.b) == left) {
		r.err = fmt.Errorf("%s of %s: row: %w", r.Action, r.Table, ErrMalformed)
	}
	return r.err == nil
}

// Err returns why Next returned false, or nil at the end of the event.
func (r *Rows) Err() error { return r.err }

// dummyTable is the table id of an event that only ends a statement.
const dummyTable = 0xffffff

// rowsTable reads the table id and the flags of a row event.
func rowsTable(c *cursor) (id uint64, flags uint16) { return c.u48(), c.u16() }

// open begins a row event of the table. c is after the event's flags.
func (r *Rows) open(t *Table, shape rowsShape, c cursor) error {
	r.Table, r.Action, r.shape, r.err = t, shape.action, shape, nil
	r.Before, r.After = nil, nil
	if shape.v2 {
		n := int(c.u16())
		c.bytes(n - 2)
	}
	if n := c.lenenc(); n != uint64(len(t.Columns)) {
		return fmt.Errorf("%s of %s: %d columns, its table has %d: %w", r.Action, t, n, len(t.Columns), ErrMalformed)
	}
	bitmap := (len(t.Columns) + 7) / 8
	r.found = c.bytes(bitmap)
	if r.foundN = countBits(r.found, len(t.Columns)); shape.action == Update {
		r.made = c.bytes(bitmap)
		r.madeN = countBits(r.made, len(t.Columns))
	}
	if c.bad {
		return fmt.Errorf("%s of %s: %w", r.Action, t, ErrMalformed)
	}
	r.d.cursor = c
	if shape.compressed {
		b, err := inflateBlock(c.b)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", r.Action, t, err)
		}
		r.d.cursor = cursor{b: b}
	}
	return nil
}

// countBits returns how many of the first n bits are set.
func countBits(bits []byte, n int) int {
	count := 0
	for i := range n {
		if i/8 < len(bits) && bits[i/8]&(1<<(i%8)) != 0 {
			count++
		}
	}
	return count
}

// image decodes one image of a row, which has the columns in present. diffs says that JSON
// columns may hold differences.
func (r *Rows) image(storage *Row, present []byte, presentN int, diffs bool) Row {
	if cap(*storage) < len(r.Table.Columns) {
		*storage = make(Row, len(r.Table.Columns))
	}
	row := (*storage)[:len(r.Table.Columns)]
	var diffBits []byte
	if diffs {
		diffBits = r.diffBits()
	}
	nulls := r.d.bytes((presentN + 7) / 8)
	if r.d.bad {
		return row
	}
	at, jsons := 0, 0
	for i := range row {
		col := &r.Table.Columns[i]
		isDiff := false
		if col.Type == typeJSON && diffBits != nil {
			isDiff = jsons/8 < len(diffBits) && diffBits[jsons/8]&(1<<(jsons%8)) != 0
			jsons++
		}
		if present[i/8]&(1<<(i%8)) == 0 {
			row[i] = Value{}
			continue
		}
		isNull := nulls[at/8]&(1<<(at%8)) != 0
		at++
		if isNull {
			row[i] = Value{kind: KindNull}
			continue
		}
		var err error
		if row[i], err = r.d.value(col); err != nil {
			r.err = fmt.Errorf("%s of %s: column %d: %w", r.Action, r.Table, i, err)
			return row
		}
		if isDiff {
			row[i].kind = KindJSONDiff
		}
	}
	return row
}

// diffBits reads which JSON columns hold differences, one bit each; nil if none.
func (r *Rows) diffBits() []byte {
	if r.d.lenenc()&1 == 0 {
		return nil
	}
	jsons := 0
	for i := range r.Table.Columns {
		if r.Table.Columns[i].Type == typeJSON {
			jsons++
		}
	}
	return r.d.bytes((jsons + 7) / 8)
}

// tableCache holds the tables that the log has mapped, by their ids.
type tableCache struct {
	want   func(schema, table string) bool
	tables map[uint64]cachedTable
}

// cachedTable keeps only the definition of a table that is not wanted.
type cachedTable struct {
	table *Table // nil: not wanted
	raw   []byte
}

// maxTables limits the cache. Each statement maps its tables again, so that forgetting them
// between transactions costs only time.
const maxTables = 8192

// put processes the body of a TABLE_MAP event. The table is new if its definition differs from
// the known one with its id; it is nil if it is not wanted.
func (tc *tableCache) put(body []byte) (t *Table, isNew bool, err error) {
	c := cursor{b: body}
	id, schema, name := tableName(&c)
	if c.bad {
		return nil, false, fmt.Errorf("TABLE_MAP: %w", ErrMalformed)
	}
	if known, ok := tc.tables[id]; ok && bytes.Equal(known.raw, body) {
		return known.table, false, nil
	}
	entry := cachedTable{}
	if tc.want == nil || tc.want(string(schema), string(name)) {
		if entry.table, err = parseTable(body); err != nil {
			return nil, false, err
		}
		entry.raw = entry.table.raw
	} else {
		entry.raw = bytes.Clone(body)
	}
	if tc.tables == nil {
		tc.tables = map[uint64]cachedTable{}
	}
	tc.tables[id] = entry
	return entry.table, entry.table != nil, nil
}

// trim empties the cache if it is too large. It is called between transactions.
func (tc *tableCache) trim() {
	if len(tc.tables) > maxTables {
		clear(tc.tables)
	}
}
