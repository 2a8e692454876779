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
	bytes  int // of the texts interned since unused ones were last dropped
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

// newStmt is a statement of a text that is not read yet.
func newStmt(sql string, private bool) *stmt {
	return &stmt{sql: sql, private: private || len(sql) > maxSharedText}
}

// setKey has the key of a statement in keyBuf.
func (in *poolStmts) setKey(set *session.Set, sql []byte) {
	in.keyBuf = append(append(append(in.keyBuf[:0], set.Key()...), 1), sql...)
}

// keep makes a statement one that the pool's clients share, unless it is one client's.
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

// A readStmt is a statement that was read away from the loop, for no pool yet.
type readStmt struct {
	*stmt
	print uint64 // of its shape
}

// readAway reads a statement's text.
func readAway(sql string, mode myscan.Mode, private bool) readStmt {
	st := newStmt(sql, private)
	mode.Multi = false
	var asRead myscan.Text
	asRead.Read(sql, mode)
	st.read(&asRead, mode)
	return readStmt{st, asRead.Fingerprint()}
}

// adopt is intern for a statement that was read.
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

// forgetAnswers has statements described anew: the schema has changed.
func (in *poolStmts) forgetAnswers() {
	for _, st := range in.byKey {
		st.answer = nil
	}
}
