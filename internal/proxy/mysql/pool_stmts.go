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
	in.keyBuf = append(append(append(in.keyBuf[:0], set.Key()...), 1), sql...)
	if st := in.byKey[string(in.keyBuf)]; st != nil && !private {
		return st
	}
	if len(in.byKey) >= maxStmts || in.bytes > maxStmtBytes {
		in.bytes = 0
		for k, st := range in.byKey {
			if st.refs == 0 {
				delete(in.byKey, k)
			}
		}
	}
	key := string(in.keyBuf)
	st := &stmt{sql: key[len(key)-len(sql):], set: set, private: private || len(sql) > maxSharedText}
	mode.Multi = false
	asRead := in.l.read(st.sql, mode)
	st.read(asRead, mode)
	st.shape = in.shape(asRead, mode, st.info.Verb)
	if !st.private {
		in.byKey[key] = st
		in.bytes += len(key)
	}
	return st
}

// forgetAnswers has statements described anew: the schema has changed.
func (in *poolStmts) forgetAnswers() {
	for _, st := range in.byKey {
		st.answer = nil
	}
}
