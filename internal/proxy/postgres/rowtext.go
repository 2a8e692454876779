package postgres

import (
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/postgres/rowtext"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file recognizes the texts of INSERTs that differ from an earlier one only in the
// constants of their row: a simple query with literals is parsed once for its
// shape, not each time.

// A rowText is the result of parsing such a text.
type rowText struct {
	info   catalogue.Reading
	as     lexical
	epoch  uint64 // of the index
	shape  *sight.Shape
	insert sqlscan.InsertShape
	key    uint64
}

// rowTexts are a pool's, by the text around the row and the kinds of its constants.
type rowTexts struct {
	m     map[string]*rowText
	bytes int // of the keys
	key   []byte
}

// Bounds of what is remembered.
const (
	maxRowTexts     = 1000
	maxRowTextBytes = 1 << 20
)

// cut finds the row of a text and makes its key. It returns false for a text of another
// form; whether the row is what it looks like is proved by a text in the table.
func (rs *rowTexts) cut(sql string) (row span, ok bool) {
	rs.key, row.at, row.end, ok = rowtext.Cut(rs.key[:0], sql)
	return row, ok
}

// find returns what is known of a text, or nil.
func (rs *rowTexts) find(sql string) (*rowText, span) {
	if len(rs.m) == 0 {
		return nil, span{}
	}
	row, ok := rs.cut(sql)
	if !ok {
		return nil, span{}
	}
	return rs.m[string(rs.key)], row
}

// keep remembers the result of parsing a text whose row was found at row. Hints that concern
// one statement alone are not remembered.
func (rs *rowTexts) keep(sql string, row span, t *rowText) {
	h := &t.info.Hints
	if h.File != "" || h.Trace != "" || h.TTL != 0 || h.Bad != nil || t.info.Effects.Has(sqlscan.EffBackslash) {
		return
	}
	if got, ok := rs.cut(sql); !ok || got != row {
		return
	}
	if len(rs.m) >= maxRowTexts || rs.bytes+len(rs.key) > maxRowTextBytes {
		clear(rs.m)
		rs.bytes = 0
	}
	if rs.m == nil {
		rs.m = make(map[string]*rowText)
	}
	if _, there := rs.m[string(rs.key)]; !there {
		rs.bytes += len(rs.key)
	}
	rs.m[string(rs.key)] = t
}

// remember keeps the result of parsing a text that joined a rows lane.
func (rt *router) remember(ln *lane, sql string, info *catalogue.Reading, sh *sight.Shape, row span) {
	c := rt.c
	c.p.rowTexts.keep(sql, span{row.at - pgwire.HeaderLen, row.end - pgwire.HeaderLen}, &rowText{
		info: catalogue.Reading{Statement: sqlscan.Statement{Verb: info.Verb, Effects: info.Effects, Count: info.Count, Hints: info.Hints}},
		as:   c.texts.lexical(), epoch: c.p.catalogue.epoch, shape: sh, insert: ln.rows.insert, key: ln.key.shape,
	})
}
