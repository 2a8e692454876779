package mysql

import (
	"strings"
	"unsafe"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// texts are what the client sends to be run: how they are to be read, and what became
// known of those that ran unjudged.
type texts struct {
	c *client

	mode     myscan.Mode // how its texts are to be read
	scanned  *longRead   // of the long text that is to be passed on next
	long     *longRead   // ... that is being passed on
	made     *stmt       // of the long text that is to be prepared next
	lookedUp *stmt       // the long one that is to be executed next
	scans    uint64      // counts the readings of long texts; the last one counts
	reading  bool        // one is under way, or what it was for has not been looked at again
	killed   bool        // a KILL QUERY has come meanwhile
	// namedEffects are what those may do; unjudged are texts that ran while the
	// catalog was not known to say what they do.
	namedEffects myscan.Effect
	unjudged     []unjudged
	lost         bool // ... on a connection that is lost by now

	// last is the text that the router has read last of the bytes that OnData has in
	// hand, lastInfo what it says by lastMode: the forwarder need not read it again.
	last     string
	lastInfo myscan.Statement
	lastMode myscan.Mode
}

// read reads a text, unless it is the one that was read last.
func (tx *texts) read(sql string) myscan.Statement {
	if len(sql) == len(tx.last) && unsafe.StringData(sql) == unsafe.StringData(tx.last) && tx.mode == tx.lastMode {
		return tx.lastInfo
	}
	return tx.c.l.read(sql, tx.mode).Scan()
}

// asRead is a text of the bytes in hand that was read before. Another may have been
// read since.
func (tx *texts) asRead(sql string) *myscan.Text { return tx.readIn(sql, tx.mode) }

// readIn is asRead in another mode.
func (tx *texts) readIn(sql string, mode myscan.Mode) *myscan.Text {
	if t := &tx.c.l.text; t.Is(sql, mode) {
		return t
	}
	return tx.c.l.read(sql, mode)
}

// keep has read return what it has returned for a text, until forget.
func (tx *texts) keep(sql string, info *myscan.Statement) {
	tx.last, tx.lastInfo, tx.lastMode = sql, *info, tx.mode
}

// forget is for the end of the bytes in which the last text is.
func (tx *texts) forget() { tx.last, tx.long = "", nil }

// A longRead is a text that was read away from the loop.
type longRead struct {
	info   myscan.Statement
	target target
	reach  myscan.Effect // what the names in it lead to
	epoch  uint64        // ... by this reading of the catalog; 0: by none
	last   bool          // it is not read again where there is another by now
}

// scan reads a text. It reports false if that happens elsewhere, and the command is
// to be looked at again afterwards.
func (tx *texts) scan(sql string) (info myscan.Statement, ready bool) {
	if len(sql) <= maxScanned {
		return tx.read(sql), true
	}
	c := tx.c
	view, epoch := c.p.catalog.view()
	before := tx.scanned
	tx.scanned = nil
	if before != nil && (before.epoch == epoch || before.last) {
		tx.long = before
		return before.info, true
	}
	mode, set, db, own := tx.mode, c.set, c.p.key.databaseOf(c.set), strings.Clone(sql)
	tx.away(func() func() {
		var asRead myscan.Text
		asRead.Read(own, mode)
		t := &longRead{info: asRead.Scan(), target: targetOf(set, &asRead), epoch: epoch, last: before != nil}
		if epoch > 0 {
			t.reach = view.reach(&asRead, &t.info, db)
		}
		return func() { tx.scanned = t }
	})
	return info, false
}

// statement is the statement of a long text that is to be prepared. It reports false if the
// text is being read elsewhere, and the command is to be looked at again afterwards.
func (tx *texts) statement(sql []byte) (st *stmt, ready bool) {
	c := tx.c
	if tx.made != nil {
		st, tx.made = tx.made, nil
		return st, true
	}
	mode := tx.mode
	mode.Multi = false
	made := &stmt{sql: string(sql), set: c.set, private: true, shape: c.l.Shapes.Other()}
	view, epoch := c.p.catalog.view()
	db := c.p.key.databaseOf(c.set)
	tx.away(func() func() {
		var asRead myscan.Text
		asRead.Read(made.sql, mode)
		made.read(&asRead, mode)
		if epoch > 0 {
			made.reaches(view.reach(&asRead, &made.info, db), epoch)
		}
		return func() { tx.made = made }
	})
	return nil, false
}

// judge has a long statement judged by the catalog as it is now, if it is not. It reports
// false if that happens elsewhere, and the execution is to be looked at again afterwards.
func (tx *texts) judge(st *stmt) (ready bool) {
	c := tx.c
	view, epoch := c.p.catalog.view()
	once := tx.lookedUp == st
	tx.lookedUp = nil
	if !st.long() || sharesNothing(c) || epoch == 0 || st.epoch == epoch || once {
		return true
	}
	info, db := st.info, c.p.key.databaseOf(st.set)
	info.Effects = st.own
	tx.away(func() func() {
		var asRead myscan.Text
		asRead.Read(st.sql, st.mode)
		e := view.reach(&asRead, &info, db)
		return func() {
			st.reaches(e, epoch)
			tx.lookedUp = st
		}
	})
	return false
}

// away has read called on a goroutine, and then on the loop what that returns; the client's
// command waits.
func (tx *texts) away(read func() (done func())) {
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

// forgetScan is for a client whose connection is lost: its next text may be another.
func (tx *texts) forgetScan() {
	tx.scans++
	tx.reading = false
	tx.scanned, tx.made, tx.lookedUp = nil, nil, nil
}

// interrupted answers a command that was killed while its text was read, and reports
// whether it was.
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

// maxScanned is the length of a text from which on it is read away from the loop:
// a megabyte takes some 10 ms, in which the loop would serve nobody. Such a text
// has no shape of its own.
const maxScanned = 256 << 10
