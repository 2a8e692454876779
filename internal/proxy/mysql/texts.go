package mysql

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// texts are the client's statements: how weir reads them, and what it has yet to find out about
// those that ran unjudged.
type texts struct {
	c *client

	mode     myscan.Mode // how its texts are read
	scanned  *longRead   // the long text that is passed on next
	long     *longRead   // the one that is being passed on
	made     *stmt       // the statement of a long text that is prepared next
	lookedUp *stmt       // the long statement that is executed next
	scans    uint64      // counts the readings of long texts; only the last one counts
	reading  bool        // a reading is in progress, or its command was not looked at again yet
	killed   bool        // a KILL QUERY has come meanwhile
	// namedEffects are the possible effects of the statements prepared in SQL; unjudged are
	// texts that ran while the catalogue was not ready.
	namedEffects myscan.Effect
	unjudged     []unjudged
	lost         bool // they ran on a connection that is lost by now

	// last is the text of the client's next command that was read last, and lastInfo its result
	// by lastMode. If the command waits, all of it is the client's own, and lastText is the text.
	last     string // empty: none
	lastInfo myscan.Statement
	lastMode myscan.Mode
	lastText *myscan.Text // nil while last is in the bytes that OnData processes
	warned   bool         // about the hints of the client's next command
}

// read scans a text, unless it is the one that was read last.
func (tx *texts) read(sql string) myscan.Statement {
	if !tx.kept(sql) {
		tx.last, tx.lastInfo, tx.lastMode, tx.lastText = sql, tx.c.l.read(sql, tx.mode).Scan(), tx.mode, nil
	}
	return tx.lastInfo
}

// kept reports whether a text is the one that was read last: the same bytes, wherever they are
// by now, in the same mode.
func (tx *texts) kept(sql string) bool {
	return tx.last != "" && sql == tx.last && tx.mode == tx.lastMode
}

// asRead returns the tokens of a text in the current bytes that was read before. It reads the
// text again if another was read since.
func (tx *texts) asRead(sql string) *myscan.Text { return tx.readIn(sql, tx.mode) }

// readIn is asRead in another mode.
func (tx *texts) readIn(sql string, mode myscan.Mode) *myscan.Text {
	if t := tx.lastText; t != nil && t.Is(sql, mode) {
		return t
	}
	if t := &tx.c.l.text; t.Is(sql, mode) {
		return t
	}
	return tx.c.l.read(sql, mode)
}

// settle is called when the client's input may move: all of it is consumed, or its next message
// waits. No text may point into it afterwards.
func (tx *texts) settle(consumed bool) {
	if consumed {
		tx.forget()
	} else {
		tx.own()
	}
	tx.c.l.text.Read("", tx.mode)
}

// own replaces what is kept of the last text by a copy.
func (tx *texts) own() {
	tx.long = nil
	if tx.last == "" || tx.lastText != nil {
		return
	}
	t := tx.readIn(tx.last, tx.lastMode).Clone()
	tx.last, tx.lastInfo, tx.lastText = t.String(), tx.lastInfo.Clone(t), t
}

// forget drops the last text when its bytes are consumed.
func (tx *texts) forget() { tx.last, tx.lastText, tx.long, tx.warned = "", nil, nil, false }

// warn complains about the hints in the client's next command, once however often it is read.
func (tx *texts) warn(h *sqlscan.Hints) {
	if h.Bad != nil && !tx.warned {
		tx.warned = true
		tx.c.hints.warn(h.Bad)
	}
}

// A longRead is a text that was parsed off the loop.
type longRead struct {
	info   myscan.Statement
	target target
	reach  myscan.Effect // effects of the objects that it names
	epoch  uint64        // ... by this version of the catalogue; 0: by none
	last   bool          // it is not read again even if the catalogue has changed
}

// scan reads a text. It returns false if that happens off the loop, and looks again at the
// command afterwards.
func (tx *texts) scan(sql string) (info myscan.Statement, ready bool) {
	if len(sql) <= maxScanned {
		return tx.read(sql), true
	}
	c := tx.c
	view, epoch := c.p.catalogue.view()
	before := tx.scanned
	tx.scanned = nil
	if before != nil && (before.epoch == epoch || before.last) {
		tx.long = before
		return before.info, true
	}
	mode, set, db, own := tx.mode, c.set, c.p.key.databaseOf(c.set), strings.Clone(sql)
	tx.offLoop(func() func() {
		var asRead myscan.Text
		asRead.Read(own, mode)
		t := &longRead{info: asRead.Scan(), target: targetOf(set, &asRead), epoch: epoch, last: before != nil}
		if epoch > 0 {
			t.reach = view.Reach(&asRead, &t.info, db)
		}
		return func() { tx.scanned = t }
	})
	return info, false
}

// statement returns the statement of a long text that is to be prepared. It returns false while
// the text is read off the loop, and looks again at the command afterwards.
func (tx *texts) statement(sql []byte) (st *stmt, ready bool) {
	c := tx.c
	if tx.made != nil {
		st, tx.made = tx.made, nil
		return st, true
	}
	mode := tx.mode
	mode.Multi = false
	made := &stmt{sql: string(sql), set: c.set, private: true, shape: c.l.Shapes.Other()}
	view, epoch := c.p.catalogue.view()
	db := c.p.key.databaseOf(c.set)
	tx.offLoop(func() func() {
		var asRead myscan.Text
		asRead.Read(made.sql, mode)
		made.read(&asRead, mode)
		if epoch > 0 {
			made.reaches(view.Reach(&asRead, &made.info, db), epoch)
		}
		return func() { tx.made = made }
	})
	return nil, false
}

// judge judges a long statement by the current catalogue unless that is done. It returns false if
// that happens off the loop, and looks again at the execution afterwards.
func (tx *texts) judge(st *stmt) (ready bool) {
	c := tx.c
	view, epoch := c.p.catalogue.view()
	once := tx.lookedUp == st
	tx.lookedUp = nil
	if !st.long() || sharesNothing(c) || epoch == 0 || st.epoch == epoch || once {
		return true
	}
	info, db := st.info, c.p.key.databaseOf(st.set)
	info.Effects = st.own
	tx.offLoop(func() func() {
		var asRead myscan.Text
		asRead.Read(st.sql, st.mode)
		e := view.Reach(&asRead, &info, db)
		return func() {
			st.reaches(e, epoch)
			tx.lookedUp = st
		}
	})
	return false
}

// offLoop calls read on a goroutine, and then the function that it returns on the loop; the
// client's command waits.
func (tx *texts) offLoop(read func() (done func())) {
	c := tx.c
	c.state.enter(stateAsking)
	tx.reading = true
	tx.scans++
	c.l.scans++
	l, scan := c.l, tx.scans
	l.srv.Background.Go(func() {
		done := read()
		l.Post(func() {
			if !c.s.Closed && c.link != nil && scan == tx.scans {
				done()
				c.fwd.goOn()
			}
		})
	})
}

// forgetScan is called when the client's connection is lost: its next text may be another.
func (tx *texts) forgetScan() {
	tx.scans++
	tx.reading = false
	tx.scanned, tx.made, tx.lookedUp = nil, nil, nil
}

// interrupted refuses a command that was killed while its text was read, and reports whether it
// was.
func (tx *texts) interrupted() bool {
	tx.reading = false
	if !tx.killed {
		return false
	}
	tx.killed = false
	tx.scanned, tx.made, tx.lookedUp = nil, nil, nil
	tx.c.responder.refuseHere(errInterrupted())
	return true
}

// maxScanned is the length above which weir parses a text off the loop: a megabyte takes some
// 10 ms, in which the loop would serve no client. Such a text has no shape of its own.
const maxScanned = 256 << 10
