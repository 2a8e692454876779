package postgres

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/sqlscan"
)

// A route is how a statement may travel.
type route uint8

const (
	// routeAlone: a backend of its own for the statement, the transaction or
	// the session. The answer to everything that weir does not know better.
	routeAlone route = iota
	// routeRead: a read without effects; may share a backend's pipeline.
	routeRead
	// routeWrite: one INSERT, UPDATE, DELETE or MERGE; may join a group if a
	// hint or the configuration asks for it.
	routeWrite
)

// writeEffects are the effects that a write may have and still join a group:
// rows written and sequences advanced.
const writeEffects = sqlscan.EffWrites | sqlscan.EffSequence | sqlscan.EffBackslash

func routeOf(info *sqlscan.Statement) route {
	switch info.Verb {
	case sqlscan.VerbSelect, sqlscan.VerbValues, sqlscan.VerbTable, sqlscan.VerbEmpty:
		if info.Effects&^sqlscan.EffBackslash == 0 {
			return routeRead
		}
	case sqlscan.VerbInsert, sqlscan.VerbUpdate, sqlscan.VerbDelete, sqlscan.VerbMerge:
		if info.Effects&^writeEffects == 0 {
			return routeWrite
		}
	}
	return routeAlone
}

// A stmt is one prepared statement text, shared by all clients of a pool that
// parse the same text with the same parameter types under the same settings.
// It is prepared on a backend when first needed there, under srvName, a name
// that no client can use (clientName escapes theirs).
type stmt struct {
	key     string // settings key and Parse tail: its identity in the pool
	srvName string
	tail    []byte // of the Parse message after the name: text, NUL, parameter types
	sql     string
	info    sqlscan.Statement
	route   route
	shape   *sight.Shape
	insert  sqlscan.InsertShape
	rows    bool // insert is valid: may become part of a multi-row statement
	refs    int  // names of clients that point here
	stale   bool // the server refused its plan after a change of the schema
}

// srvPrefix begins the name of every statement that weir prepares.
const srvPrefix = "weir_"

// clientName is the name under which a statement that weir does not know is
// passed on, so that it cannot meet one of ours. The server will say that it
// does not exist; the error is translated back.
func clientName(name []byte) string { return "client_" + string(name) }

// maxSharedText bounds the texts that are kept for sharing; a longer one is
// parsed for its client alone.
const maxSharedText = 64 << 10

// maxStmts bounds the shared texts of a pool; those that no client names are
// dropped past it.
const maxStmts = 10000

// intern returns the shared statement for the body of a Parse message after
// its name.
func (p *pool) intern(set *session.Set, tail []byte) *stmt {
	p.keyBuf = append(append(append(p.keyBuf[:0], set.Key()...), 1), tail...)
	if s := p.stmts[string(p.keyBuf)]; s != nil {
		return s
	}
	if len(p.stmts) >= maxStmts {
		for k, s := range p.stmts {
			if s.refs == 0 {
				delete(p.stmts, k)
			}
		}
	}
	key := string(p.keyBuf)
	s := p.newStmt(key, []byte(key[len(set.Key())+1:]))
	if len(tail) <= maxSharedText {
		p.stmts[key] = s
	}
	return s
}

func (p *pool) newStmt(key string, tail []byte) *stmt {
	end := bytes.IndexByte(tail, 0)
	sql := string(tail[:max(end, 0)])
	p.stmtSeq++
	s := &stmt{
		key: key, tail: tail, sql: sql,
		srvName: srvPrefix + strconv.FormatUint(p.stmtSeq, 36),
		info:    p.scan(sql),
	}
	s.route = routeOf(&s.info)
	s.shape = p.shape(sql, s.info.Verb)
	if s.route == routeWrite && s.info.Verb == sqlscan.VerbInsert {
		s.insert, s.rows = sqlscan.Insert(sql)
	}
	return s
}

// hasDo tells whether one of several statements may be DO.
func hasDo(sql string) bool {
	for _, w := range strings.FieldsFunc(sql, func(r rune) bool { return r < 0x80 && !isNameByte(byte(r)) || r == '$' }) {
		if strings.EqualFold(w, "do") {
			return true
		}
	}
	return false
}

// scan reads a text under the session's string syntax.
func (p *pool) scan(sql string) sqlscan.Statement {
	info := sqlscan.Scan(sql)
	if info.Verb == sqlscan.VerbDo || info.Effects.Has(sqlscan.EffMulti) && info.Effects.Has(sqlscan.EffUnknownFunc) && hasDo(sql) {
		if changesSettings(sql) {
			info.Effects |= sqlscan.EffSetConfig
		}
	}
	if p.nonconforming {
		info = info.Nonconforming()
	}
	return info
}

// renew replaces a statement whose plan the server refused: the next Parse of
// the text makes a new one. Clients that parsed before the schema changed keep
// the old one, and its error, as they would directly.
func (p *pool) renew(s *stmt) *stmt {
	if !s.stale {
		s.stale = true
		if p.stmts[s.key] == s {
			delete(p.stmts, s.key)
		}
	}
	if n := p.stmts[s.key]; n != nil {
		return n
	}
	n := p.newStmt(s.key, s.tail)
	n.info, n.route, n.rows = s.info, s.route, s.rows // as its clients' settings have it read
	p.stmts[s.key] = n
	return n
}

// forgetTexts makes every later Parse a new statement, because a change of the
// schema may have changed what the texts mean.
func (p *pool) forgetTexts() {
	clear(p.stmts)
	for _, ln := range p.lanes {
		ln.forget()
	}
	p.tables.forget()
}
