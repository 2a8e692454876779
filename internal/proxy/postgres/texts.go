package postgres

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// texts is the text that the client sends: how the server reads it, and what became
// known of statements that ran unjudged.
type texts struct {
	c *client

	lex       lexical // as far as the client knows
	bytewise  bool    // its texts can be read byte by byte
	lexicalTx bool    // the current transaction has changed how they are read
	// bodies: functions were created in the current transaction; what they do is not
	// known before it ends. madeBodies: it has ended.
	bodies, madeBodies bool
	makesSurely        bool                // certainly, not only perhaps
	makes              bool                // relations, in a transaction that has not ended
	unread             map[string]struct{} // texts that ran when nothing was known of them
	unreadBytes        int
	prepares           uint64    // the epoch in which the session first had SQL-prepared statements
	long               *longRead // linked: the text of the next message, which is being scanned

	// last is the text of the client's next message that was read last, lastInfo what it
	// says, read as lastAs by an index of lastEpoch. If the message waits, all of it is
	// the client's own: lastText is the text, as lexical.reads has it.
	last      string // empty: none
	lastInfo  catalogue.Reading
	lastAs    lexical
	lastEpoch uint64
	lastText  *sqlscan.Text // nil while last is in the bytes that OnData has in hand
	counted   bool          // the invalid hints of the client's next message
}

// keep makes scan return what it has returned for a text, until forget.
func (tx *texts) keep(sql string, info *catalogue.Reading) {
	tx.last, tx.lastInfo, tx.lastAs, tx.lastEpoch, tx.lastText = sql, *info, tx.lexical(), tx.c.p.catalogue.epoch, nil
}

// kept reports whether keep holds the result for this text: for the same bytes, wherever they
// are by now, read in the same way.
func (tx *texts) kept(sql string) bool {
	return tx.last != "" && sql == tx.last && tx.lastAs == tx.lexical() && tx.lastEpoch == tx.c.p.catalogue.epoch
}

// settle is called when the client's input may move: all of it is consumed, or its next message
// waits. No text may point into it afterwards.
func (tx *texts) settle(consumed bool) {
	if consumed {
		tx.forget()
	} else {
		tx.own()
	}
	tx.c.l.text.Read("")
}

// own replaces what is kept of the last text by a copy.
func (tx *texts) own() {
	switch {
	case tx.last == "" || tx.lastText != nil:
		return
	case !tx.kept(tx.last):
		tx.last = ""
		return
	}
	t := tx.asRead(tx.last).Clone()
	if own := t.String(); own == tx.last {
		tx.last = own
	} else {
		tx.last = strings.Clone(tx.last)
	}
	tx.lastInfo, tx.lastText = tx.lastInfo.Clone(), t
}

// forget is called when the message that contains the last text is consumed.
func (tx *texts) forget() { tx.last, tx.lastText, tx.counted = "", nil, false }

// warn complains of the hints in the client's next message, and counts them once however often it
// is read. The client may be told only when the message is read again, after earlier answers.
func (tx *texts) warn(h *sqlscan.Hints) {
	if h.Bad != nil {
		tx.c.hints.warn(h.Bad, !tx.counted)
		tx.counted = true
	}
}

// scan scans a text, which is the loop's afterwards, in the form in which
// lexical.reads has it, unless it cannot be read.
func (tx *texts) scan(sql string) catalogue.Reading {
	if !tx.readable(sql) {
		return opaque
	}
	if tx.kept(sql) {
		tx.c.p.catalogue.used = true
		return tx.lastInfo
	}
	t := tx.read(sql)
	info := tx.c.p.stmts.judge(scan(sql, t), t)
	tx.keep(sql, &info)
	return info
}

// read splits a text into tokens.
func (tx *texts) read(sql string) *sqlscan.Text {
	tx.c.l.scans.note(sql)
	t := &tx.c.l.text
	t.Read(tx.lexical().reads(sql))
	return t
}

// scanNext scans a text that the linked client sends after the units in flight; known is
// its statement if it was scanned before. It returns false if the units in flight
// must be answered first, or if the text is long and is still being scanned.
func (tx *texts) scanNext(sql string, known *stmt) (info catalogue.Reading, ok bool) {
	c := tx.c
	if known != nil {
		c.p.stmts.refresh(known)
		info = known.info
	} else if len(sql) <= maxScanned || !tx.readable(sql) {
		info = tx.scan(sql)
	} else if info, ok = tx.scanLong(sql, tx.lexical()); !ok {
		return opaque, false
	}
	if c.link.Depth() == 0 || info.Effects.Has(sqlscan.EffEncoding) || !(info.Effects.Has(sqlscan.EffBackslash) || !sqlscan.ASCII(sql)) || !tx.unsettled() {
		return info, true
	}
	return opaque, c.cur != nil // within a pipeline no answer comes before its Sync
}

// lexical is how the server would read the client's next text, if nothing is
// in flight.
func (tx *texts) lexical() lexical {
	if tx.c.link != nil {
		return tx.c.link.lex
	}
	return tx.lex
}

// readable reports whether weir reads a text as the server will: it is in a bytewise
// encoding, or ASCII.
func (tx *texts) readable(sql string) bool {
	safe := tx.bytewise
	if tx.c.link != nil {
		safe = tx.c.link.bytewise
	}
	return safe || sqlscan.ASCII(sql)
}

// unsettled reports whether a statement of the client in flight may change
// how the server reads the next one: the report of that comes with its answer.
func (tx *texts) unsettled() bool {
	b := tx.c.link
	if b == nil {
		return false
	}
	between := tx.c.cur == nil
	return slices.ContainsFunc(b.Units(), func(u *unit) bool {
		// A trigger may, too. Between units it costs little to wait for that; within
		// a pipeline the effects of a write are checked after the write.
		return u.unsettles || between && u.effects.Has(sqlscan.EffWrites)
	})
}

// unsettles reports whether a statement may change client_encoding or
// standard_conforming_strings.
func (tx *texts) unsettles(info *sqlscan.Statement) bool {
	switch e := info.Effects; {
	case e.Has(sqlscan.EffSetUnknown | sqlscan.EffSetConfig | sqlscan.EffUnknownFunc | sqlscan.EffUnknown | sqlscan.EffDiscardAll | sqlscan.EffPrepare | sqlscan.EffTouch):
		return true
	case e.Has(sqlscan.EffSet):
		return slices.ContainsFunc(clauses(info), func(s sqlscan.SetClause) bool { return s.All || lexicalSetting(s.Name) })
	case e.Has(sqlscan.EffTx):
		return tx.lexicalTx
	case e.Has(sqlscan.EffWrites) && e.Has(sqlscan.EffSessionRead): // UPDATE pg_settings
		return true
	}
	return false
}

// told handles a report of a setting that was passed to the client, which therefore knows it.
func (tx *texts) told(name, value string) {
	if lexicalSetting(name) && tx.c.tx != pgwire.StatusIdle {
		tx.lexicalTx = true
	}
	switch name {
	case encodingName:
		tx.lex.encoding, tx.bytewise = strings.Clone(value), bytewise[value]
	case conformingName:
		tx.lex.conforming = strings.Clone(value)
	}
}

// shape is the statistics of statements like a text that was just scanned.
func (tx *texts) shape(sql string, info *catalogue.Reading) *sight.Shape {
	c := tx.c
	switch {
	case info.Effects.Has(sqlscan.EffEncoding):
		return c.p.stmts.unreadShape()
	case len(sql) > maxScanned:
		return c.p.stmts.shapes.Other()
	}
	return c.p.stmts.shape(tx.asRead(sql), info.Verb)
}

// asRead is a text that scan was just called for. It is read again if another one was judged
// since.
func (tx *texts) asRead(sql string) *sqlscan.Text {
	if tx.lastText != nil && tx.kept(sql) {
		return tx.lastText
	}
	if t := &tx.c.l.text; t.String() == tx.lexical().reads(sql) {
		return t
	}
	return tx.read(sql)
}

// remember keeps a text of which nothing was known, to judge it later.
func (tx *texts) remember(sql string) bool {
	if tx.c.pins.held&pinUnread == 0 {
		tx.unread, tx.unreadBytes = nil, 0
	}
	if _, ok := tx.unread[sql]; ok {
		return true
	}
	if tx.unreadBytes += len(sql); tx.unreadBytes > maxRemembered || tx.c.pins.held&pinFunc != 0 {
		return false
	}
	if tx.unread == nil {
		tx.unread = make(map[string]struct{})
	}
	tx.unread[strings.Clone(sql)] = struct{}{}
	return true
}

// rejudge judges what the client did while nothing was known. Without an index the client
// stays pinned.
func (tx *texts) rejudge(x *catalogue.Index) {
	c := tx.c
	c.pins.held &^= pinUnread
	if x == nil {
		c.pins.add(pinFunc)
	}
	var t sqlscan.Text
	for sql := range tx.unread {
		t.Read(sql)
		if x == nil {
			break
		}
		info := x.Judge(t.Scan(), &t)
		if info.Effects.Has(sqlscan.EffTouch) {
			c.settings.doubt(info.Touches...)
		}
		c.pins.look = c.pins.look || info.Makes
		c.pins.add(pinsOf(info.Effects))
	}
	tx.unread = nil
	if c.link != nil {
		c.link.settle()
	}
}

// maxRemembered bounds the texts that are kept of a client to be judged later, in bytes.
const maxRemembered = 64 << 10
