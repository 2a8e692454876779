package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// This file is about long texts. Scanning a megabyte takes tens of milliseconds, in
// which a loop would serve no other client: a goroutine scans a long text, and its
// client's messages wait for that.

// maxScanned is the longest text that is scanned on the loop.
// A longer text has no shape of its own.
const maxScanned = 256 << 10

// A longRead is a text that is being scanned, or was, outside of the loop.
type longRead struct {
	sql   string
	info  catalogue.Reading
	epoch uint64 // of the index by which it is judged
	done  bool
	then  []core.Task // called after the client, when it is done
}

// judged has a statement of a linked client judged by the index that holds now. It reports
// false while a goroutine does, as scanLong.
func (tx *texts) judged(st *stmt) bool {
	epoch := tx.c.p.catalogue.epoch
	if !st.long() || st.judged == epoch {
		tx.c.p.stmts.refresh(st)
		return true
	}
	info, ready := tx.scanLong(st.sql, st.as)
	if ready {
		st.info, st.judged = info, epoch
	}
	return ready
}

// scanLong reads a long text of a linked client. It reports false while a goroutine
// does: the message is looked at again afterwards.
func (tx *texts) scanLong(sql string, as lexical) (info catalogue.Reading, ready bool) {
	c := tx.c
	p := c.p
	if t := tx.long; t != nil {
		if !t.done {
			return opaque, false
		}
		tx.long = nil
		// Otherwise it is the text of a message that was refused meanwhile, or was
		// judged by an index that no longer holds.
		if t.epoch == p.catalogue.epoch && t.sql == sql {
			return t.info, true
		}
	}
	t := &longRead{sql: strings.Clone(sql), epoch: p.catalogue.epoch}
	tx.long, p.catalogue.used = t, true
	index, l := p.catalogue.index, c.l
	l.srv.Background.Go(func() {
		var asRead sqlscan.Text
		asRead.Read(as.reads(t.sql))
		info := index.Judge(scan(t.sql, &asRead), &asRead)
		l.Post(func() {
			t.info, t.done = info, true
			c.resume()
			for _, task := range t.then {
				l.Agenda.Lane(task)
			}
		})
	})
	return opaque, false
}
