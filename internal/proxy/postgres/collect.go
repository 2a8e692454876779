package postgres

import (
	"bytes"
	"time"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file gathers the extended messages of a client without a backend into
// one unit, and decides where it may run.

// feedExtended takes extended messages up to their Sync.
func (c *client) feedExtended(p []byte) int {
	u := c.l.newUnit(unitClient)
	used, verdict := c.collect(u, p)
	if verdict == collected {
		c.partialDue = false
		if c.inflight > 0 && !(u.shared() && c.mayFollow() && !u.stalled(c.l.Now)) {
			verdict = collectMore
		} else if c.sendWhole(u, p[:used]) {
			return used
		} else {
			verdict = collectAlone
		}
	}
	if verdict == collectBad {
		c.l.recycle(u)
		return len(p)
	}
	own := u.effects.Has(sqlscan.EffSequenceRead)
	c.l.recycle(u)
	if verdict == collectMore {
		return 0
	}
	if verdict == collectRest {
		if c.inflight > 0 {
			return 0
		}
		if !c.partialDue {
			c.awaitSync()
			return 0
		}
	}
	c.partialDue = false
	return c.needBackend(own)
}

// syncPatience is how long a client's messages without a Sync wait for one. Then
// the client gets a backend, which answers what is there: a pipeline may be long,
// and its client be waiting for an error in the middle of it.
const syncPatience = 10 * time.Millisecond

// A partial is a client whose last message was no Sync.
type partial struct{ c *client }

func (c *client) awaitSync() {
	if c.partialAt == 0 {
		c.partialAt = c.l.Now
		c.l.Agenda.At(partial{c})
	}
}

func (p partial) Deadline() (time.Duration, bool) {
	return p.c.partialAt + syncPatience, !p.c.s.Closed && p.c.link == nil && len(p.c.s.In) > 0
}

func (p partial) Due() {
	c := p.c
	c.partialAt = 0
	if !c.s.Closed && c.link == nil && !c.waiting && c.inflight == 0 && len(c.s.In) > 0 {
		c.partialDue = true
		c.resume()
	}
}

type collectVerdict uint8

const (
	collected    collectVerdict = iota
	collectMore                 // a message is not whole yet
	collectRest                 // the Sync has not come yet
	collectAlone                // needs a backend of its own
	collectBad                  // the client was disconnected
)

// collect reads messages into u.ops without consuming them. The offsets are
// relative to p.
func (c *client) collect(u *unit, p []byte) (used int, v collectVerdict) {
	i := 0
	for {
		typ, n, ok := pgwire.Peek(p[i:])
		if ok && (n < pgwire.HeaderLen || n > c.l.cfg.MaxMessage) {
			c.protocolError("message of type %q is %d bytes long", typ, n-1)
			return 0, collectBad
		}
		if !ok || i+n > len(p) {
			if len(p) >= maxWhole { // more is not read: see maxHeld
				return 0, collectAlone
			}
			if i == len(p) {
				return 0, collectRest
			}
			return 0, collectMore
		}
		o := op{kind: typ, off: int32(i), end: int32(i + n)}
		body := p[i+pgwire.HeaderLen : i+n]
		i += n
		switch typ {
		case pgwire.ClientSync:
			u.ops = append(u.ops, o)
			return i, collected
		case pgwire.ClientParse:
			name, rest, ok := cstr(body, 0)
			if !ok {
				c.protocolError("malformed Parse message")
				return 0, collectBad
			}
			if len(name) > 0 && u.lookup(c, name) != nil {
				return 0, collectAlone // the server itself will refuse the duplicate
			}
			if _, err := pgwire.ParseParse(body); err != nil {
				c.protocolError("malformed Parse message")
				return 0, collectBad
			}
			if end := bytes.IndexByte(body[rest:], 0); !c.readable(text(body[rest : rest+max(end, 0)])) {
				return 0, collectAlone
			}
			o.st = c.p.internFor(c, body[rest:])
			u.parsed = append(u.parsed, parsedName{name: string(cutName(name)), st: o.st})
			u.effects |= o.st.info.Effects
			if o.st.info.Hints.Bad != nil {
				c.complain(o.st.info.Hints.Bad)
			}
		case pgwire.ClientBind:
			_, at, ok := cstr(body, 0)
			if !ok {
				c.protocolError("malformed Bind message")
				return 0, collectBad
			}
			name, rest, ok := cstr(body, at)
			if !ok {
				c.protocolError("malformed Bind message")
				return 0, collectBad
			}
			o.st = u.lookup(c, name)
			if o.st == nil || o.st.elsewhere(c) {
				return 0, collectAlone // the server will say that it does not exist, or parse it as it was
			}
			head := int32(pgwire.HeaderLen)
			o.name, o.rest = o.off+head+int32(at), o.off+head+int32(rest)
			c.p.current(o.st)
			u.effects |= o.st.info.Effects
		case pgwire.ClientDescribe, pgwire.ClientClose:
			m, err := pgwire.ParseDescribe(body)
			if err != nil {
				c.protocolError("malformed message of type %q", typ)
				return 0, collectBad
			}
			if m.Kind == pgwire.KindStatement {
				o.st = u.lookup(c, m.Name)
				if typ == pgwire.ClientClose {
					u.parsed = append(u.parsed, parsedName{name: string(cutName(m.Name))})
				} else if o.st == nil || o.st.elsewhere(c) {
					return 0, collectAlone
				}
			}
		case pgwire.ClientExecute:
			m, err := pgwire.ParseExecute(body)
			if err != nil {
				c.protocolError("malformed Execute message")
				return 0, collectBad
			}
			if m.Limit != 0 {
				return 0, collectAlone
			}
		default:
			// Flush asks for answers before the Sync; anything else is
			// unusual enough to leave to a backend.
			return 0, collectAlone
		}
		u.ops = append(u.ops, o)
	}
}

// lookup finds a statement by the client's name for it: parsed in this unit,
// or before.
func (u *unit) lookup(c *client, name []byte) *stmt {
	name = cutName(name)
	for i := len(u.parsed) - 1; i >= 0; i-- {
		if u.parsed[i].name == text(name) {
			return u.parsed[i].st
		}
	}
	if len(name) == 0 {
		return c.unnamed
	}
	return c.stmts[text(name)]
}

// shared tells whether every statement that the unit executes is a read that
// may share a pipeline. A unit that executes nothing (Parse, Describe, Close)
// may too.
func (u *unit) shared() bool {
	for i := range u.ops {
		o := &u.ops[i]
		if o.kind == pgwire.ClientBind && (o.st.route != routeRead || !o.st.shape.Sharable()) {
			return false
		}
	}
	return true
}

// stalled reports whether one like the unit holds up those behind it now.
func (u *unit) stalled(now time.Duration) bool {
	for i := range u.ops {
		if o := &u.ops[i]; o.kind == pgwire.ClientBind && o.st.shape.Stalled(now) {
			return true
		}
	}
	return u.shape != nil && u.shape.Stalled(now)
}

// reads tells whether every statement that the unit executes is a read.
func (u *unit) reads() bool {
	for i := range u.ops {
		if o := &u.ops[i]; o.kind == pgwire.ClientBind && o.st.route != routeRead {
			return false
		}
	}
	return true
}

// sendWhole routes a collected unit: to a shared backend or into a group. It
// reports false when the unit needs a backend of its own.
func (c *client) sendWhole(u *unit, p []byte) bool {
	if !c.bytewise {
		return false
	}
	var write *stmt
	binds := 0
	for i := range u.ops {
		if o := &u.ops[i]; o.kind == pgwire.ClientBind {
			binds++
			if o.st.route == routeWrite {
				write = o.st
			}
			u.shape = o.st.shape
		}
	}
	if write == nil {
		switch {
		case u.shared():
			c.adopt(u, p)
			c.p.sharing.run(u)
		case u.reads() && c.inflight == 0 && !c.crowded():
			c.adopt(u, p)
			c.p.sharing.runAlone(u)
		default:
			return false
		}
		return true
	}
	if binds != 1 || c.inflight > 0 {
		return false
	}
	window, ok := c.batchWindow(&write.info.Statement)
	if !ok {
		return false
	}
	ln := c.laneForStmt(u, p, write, window)
	if ln == nil {
		return false
	}
	c.adopt(u, p)
	ln.push(u)
	return true
}

// adopt makes a collected unit the client's: from here on it will be answered.
func (c *client) adopt(u *unit, p []byte) {
	u.c = c
	u.raw = append(u.raw[:0], p...)
	u.queuedAt = c.l.Now
	c.inflight++
	c.stats.units++
	names := u.parsed
	u.parsed = u.parsed[:0]
	for _, n := range names {
		c.rename(u, n)
	}
}

// name makes a client's name point to a statement.
func (c *client) name(name string, st *stmt) {
	st.refs++
	if name == "" {
		if c.unnamed != nil {
			c.unnamed.refs--
		}
		c.unnamed, c.unnamedAt = st, 0
		return
	}
	if old := c.stmts[name]; old != nil {
		old.refs--
	}
	if c.stmts == nil {
		c.stmts = make(map[string]*stmt)
	}
	c.stmts[name] = st
}

func (c *client) unname(name string) {
	if name == "" {
		if c.unnamed != nil {
			c.unnamed.refs--
			c.unnamed = nil
		}
		return
	}
	if st := c.stmts[name]; st != nil {
		st.refs--
		delete(c.stmts, name)
	}
}

func (c *client) replaceStmt(old, fresh *stmt) {
	if c.unnamed == old {
		c.name("", fresh)
	}
	for n, st := range c.stmts {
		if st == old {
			c.name(n, fresh)
		}
	}
}
