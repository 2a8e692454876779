package postgres

import (
	"bytes"
	"strconv"
	"strings"
	"unsafe"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
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
// rows written, sequences advanced, and harmless routines called.
const writeEffects = sqlscan.EffWrites | sqlscan.EffSequence | sqlscan.EffBackslash | sqlscan.EffRoutine

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
// that no client can use (see foreignName).
type stmt struct {
	key     string // settings key and Parse tail: its identity in the pool
	srvName string
	tail    []byte // of the Parse message after the name: text, NUL, parameter types
	sql     string
	text    sqlscan.Statement // what its text shows
	info    reading           // and what is known of the names in it
	judged  uint64            // the epoch of the index that says so
	route   route
	shape   *sight.Shape
	insert  sqlscan.InsertShape
	rows    bool    // insert is valid: may become part of a multi-row statement
	refs    int     // names of clients that point here
	lex     lexical // how its text is read, where that makes a difference
	asRead  string  // its text as weir reads it: see lexical.reads
	stale   bool    // the server refused its plan after a change of the schema
}

// srvPrefix begins the name of every statement that weir prepares.
const srvPrefix = "weir_"

// maxSharedText bounds the texts that are kept for sharing; a longer one is
// parsed for its client alone.
const maxSharedText = 64 << 10

// maxStmts bounds the shared texts of a pool; those that no client names are
// dropped past it.
const maxStmts = 10000

// maxStmtBytes bounds the same in bytes.
const maxStmtBytes = 32 << 20

// intern returns the shared statement for the body of a Parse message after
// its name.
func (p *pool) intern(set *session.Set, as lexical, tail []byte) *stmt {
	head := p.stmtKey(set, as, tail)
	if s := p.stmts[string(p.keyBuf)]; s != nil {
		return s
	}
	if len(p.stmts) >= maxStmts || p.stmtBytes+len(p.keyBuf) > maxStmtBytes {
		p.stmtBytes = 0
		for k, s := range p.stmts {
			if s.refs == 0 {
				delete(p.stmts, k)
			} else {
				p.stmtBytes += len(k)
			}
		}
	}
	key := string(p.keyBuf)
	rest := key[head:]
	s := p.newStmt(key, unsafe.Slice(unsafe.StringData(rest), len(rest)), as) // one copy; tails are not written to
	if len(tail) <= maxSharedText && p.stmtBytes+len(key) <= maxStmtBytes {
		p.stmts[key] = s
		p.stmtBytes += len(key)
	}
	return s
}

// stmtKey has the key of a statement in keyBuf, and returns where the tail begins in it.
func (p *pool) stmtKey(set *session.Set, as lexical, tail []byte) (head int) {
	p.keyBuf = append(append(p.keyBuf[:0], set.Key()...), 1)
	p.keyBuf = append(append(append(p.keyBuf, as.encoding...), as.conforming...), 1)
	head = len(p.keyBuf)
	p.keyBuf = append(p.keyBuf, tail...)
	return head
}

func (p *pool) newStmt(key string, tail []byte, as lexical) *stmt {
	end := bytes.IndexByte(tail, 0)
	sql := text(tail[:max(end, 0)])
	p.stmtSeq++
	s := &stmt{
		key: key, tail: tail, sql: sql,
		srvName: srvPrefix + strconv.FormatUint(p.stmtSeq, 36),
		asRead:  as.reads(sql),
	}
	p.l.text.Read(s.asRead)
	p.l.scans++
	s.text = scan(sql, &p.l.text)
	p.judgeStmt(s)
	s.shape = p.shape(&p.l.text, s.info.Verb)
	if s.route == routeWrite && s.info.Verb == sqlscan.VerbInsert && s.asRead == sql {
		s.insert, s.rows = p.l.text.Insert()
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

// scan reads a text in the form in which lexical.reads has it.
func scan(sql string, asRead *sqlscan.Text) sqlscan.Statement {
	info := asRead.Scan()
	if asRead.String() != sql {
		info.Effects |= sqlscan.EffBackslash
	}
	return info
}

// judge says what a statement does, by its text and by its names.
func (p *pool) judge(info sqlscan.Statement, t *sqlscan.Text) reading {
	p.proof.used = true
	return p.proof.index.judge(info, t)
}

// judgeStmt judges a statement. Its text is the loop's afterwards.
func (p *pool) judgeStmt(s *stmt) {
	p.l.text.Read(s.asRead)
	s.info, s.judged = p.judge(s.text, &p.l.text), p.proof.epoch
	s.route = routeOf(&s.info.Statement)
}

// current judges a statement again if more has become known since.
func (p *pool) current(s *stmt) {
	p.proof.used = true
	if s.judged != p.proof.epoch {
		p.judgeStmt(s)
	}
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
	n := p.newStmt(s.key, s.tail, s.lex)
	n.reads(s.lex)
	p.stmts[s.key] = n
	return n
}

// forgetTexts makes every later Parse a new statement, because a change of the
// schema may have changed what the texts mean.
func (p *pool) forgetTexts() {
	clear(p.stmts)
	p.stmtBytes = 0
	for _, ln := range p.lanes.all {
		ln.forget()
	}
	p.tables.forget()
}
