package mysql

import (
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// poolStmts are the prepared statements that the clients of a pool share.
type poolStmts struct {
	l      *loop
	byKey  map[string]*stmt
	bytes  int // size of the texts interned since unused ones were last dropped
	keyBuf []byte
}

// shape returns the statistics of statements like t, which was read in the given mode.
func (in *poolStmts) shape(t *myscan.Text, mode myscan.Mode, verb myscan.Verb) *sight.Shape {
	return in.l.Shapes.Of(t.Fingerprint(), verb.String(), func(limit int) string { return myscan.Normalize(t.String(), mode, limit) })
}

// intern returns the shared statement for a text.
func (in *poolStmts) intern(set *session.Set, sql []byte, mode myscan.Mode, private bool) *stmt {
	in.setKey(set, sql)
	if st := in.byKey[string(in.keyBuf)]; st != nil && !private {
		return st
	}
	key := string(in.keyBuf)
	st := newStmt(key[len(key)-len(sql):], private)
	st.set = set
	mode.Multi = false
	asRead := in.l.read(st.sql, mode)
	st.read(asRead, mode)
	st.shape = in.shape(asRead, mode, st.info.Verb)
	in.keep(key, st)
	return st
}

// newStmt makes a statement of a text that is not parsed yet.
func newStmt(sql string, private bool) *stmt {
	return &stmt{sql: sql, private: private || len(sql) > maxSharedText}
}

// setKey writes the key of a statement to keyBuf.
func (in *poolStmts) setKey(set *session.Set, sql []byte) {
	in.keyBuf = append(append(append(in.keyBuf[:0], set.Key()...), 1), sql...)
}

// keep adds a statement to those that the pool's clients share, unless it is private.
func (in *poolStmts) keep(key string, st *stmt) {
	if st.private {
		return
	}
	if len(in.byKey) >= maxStmts || in.bytes > maxStmtBytes {
		in.bytes = 0
		for k, st := range in.byKey {
			if st.refs == 0 {
				delete(in.byKey, k)
			}
		}
	}
	in.byKey[key] = st
	in.bytes += len(key)
}

// A readStmt is a statement that was parsed off the loop, and belongs to no pool yet.
type readStmt struct {
	*stmt
	print uint64 // of its shape
}

// readAway parses a statement's text off the loop.
func readAway(sql string, mode myscan.Mode, private bool) readStmt {
	st := newStmt(sql, private)
	mode.Multi = false
	var asRead myscan.Text
	asRead.Read(sql, mode)
	st.read(&asRead, mode)
	return readStmt{st, asRead.Fingerprint()}
}

// adopt is intern for a statement that is already parsed.
func (in *poolStmts) adopt(set *session.Set, made readStmt) *stmt {
	st := made.stmt
	in.setKey(set, []byte(st.sql))
	if other := in.byKey[string(in.keyBuf)]; other != nil && !st.private {
		return other
	}
	st.set, st.target.in = set, set
	if st.shape = in.l.Shapes.Other(); !st.long() {
		st.shape = in.l.Shapes.Of(made.print, st.info.Verb.String(), func(limit int) string { return myscan.Normalize(st.sql, st.mode, limit) })
	}
	in.keep(string(in.keyBuf), st)
	return st
}

// forgetAnswers drops the cached descriptions of all statements: the schema has changed.
func (in *poolStmts) forgetAnswers() {
	for _, st := range in.byKey {
		st.answer = nil
	}
}
