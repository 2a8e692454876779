package mysql

import (
	"errors"
	"fmt"
	"io"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// answer reads the response to one statement.
type answer struct {
	s     *Session
	names func(string)
	rows  func([][]byte) error
	file  io.Reader

	out    Outcome
	failed error // the error of the callback: the rest of the rows is skipped
	values [][]byte
}

const headerInfile = 0xfb

// result reads one result, and reports whether another one follows.
func (a *answer) result() (more bool, err error) {
	payload, err := a.s.read()
	if err != nil {
		return false, err
	}
	switch {
	case len(payload) == 0:
		return false, a.s.fail(mywire.ErrMalformed)
	case mywire.IsError(payload):
		return false, a.refused(payload)
	case payload[0] == headerInfile:
		return a.send()
	case mywire.IsOK(payload):
		return a.end(payload)
	}
	count, _, ok := mywire.ParseLenenc(payload)
	if !ok || count == 0 || count > 1<<16 {
		return false, a.s.fail(fmt.Errorf("column count: %w", mywire.ErrMalformed))
	}
	for range count {
		if payload, err = a.s.read(); err != nil {
			return false, err
		}
		if a.names == nil {
			continue
		}
		c, err := mywire.ParseColumn(payload, a.s.server.Caps)
		if err != nil {
			return false, a.s.fail(err)
		}
		a.names(string(c.Name))
	}
	return a.readRows(int(count))
}

func (a *answer) readRows(columns int) (more bool, err error) {
	if !a.s.server.Caps.Has(mywire.CapDeprecateEOF) {
		if _, err := a.s.read(); err != nil {
			return false, err
		}
	}
	for {
		payload, err := a.s.read()
		if err != nil {
			return false, err
		}
		if mywire.IsError(payload) {
			return false, a.refused(payload)
		}
		if mywire.IsEnd(payload, a.s.server.Caps) {
			return a.end(payload)
		}
		if a.rows == nil || a.failed != nil {
			continue
		}
		if a.values, err = mywire.ParseTextRow(payload, columns, a.values[:0]); err != nil {
			return false, a.s.fail(err)
		}
		a.failed = a.rows(a.values)
	}
}

// end handles an OK, or the EOF that other servers send after rows.
func (a *answer) end(payload []byte) (more bool, err error) {
	var status mywire.Status
	if mywire.IsEOF(payload) && !a.s.server.Caps.Has(mywire.CapDeprecateEOF) {
		var warnings uint16
		if warnings, status, err = mywire.ParseEOF(payload); err != nil {
			return false, a.s.fail(err)
		}
		a.out.Warnings = int(warnings)
	} else {
		ok, err := mywire.ParseOK(payload, a.s.server.Caps)
		if err != nil {
			return false, a.s.fail(err)
		}
		status = ok.Status
		a.out = Outcome{Affected: ok.AffectedRows, Warnings: int(ok.Warnings), Info: string(ok.Info)}
	}
	if status&mywire.StatusMoreResults != 0 {
		return true, nil
	}
	return false, a.failed
}

func (a *answer) refused(payload []byte) error {
	e, err := mywire.ParseError(payload)
	if err != nil {
		return a.s.fail(err)
	}
	switch e.Code {
	case mywire.ErrServerShutdown, mywire.ErrMariaConnectionKilled, mywire.ErrInteractionTimeout:
		return a.s.fail(e)
	}
	if a.failed != nil {
		return errors.Join(a.failed, e)
	}
	return e
}

// filePacket is how much of a file goes into one packet, in bytes. While the server processes
// one packet, the next is read, decompressed and verified.
const filePacket = 256 << 10

// send sends the file that the server requests. If the file cannot be read to its end, it
// closes the connection, so that the server rolls back: the protocol cannot distinguish a
// premature end from the real one.
func (a *answer) send() (more bool, err error) {
	seq := a.s.seq
	file := a.file
	a.file = nil
	buf := make([]byte, mywire.HeaderLen+filePacket)
	for file != nil {
		n, err := io.ReadFull(file, buf[mywire.HeaderLen:])
		if n > 0 {
			mywire.AppendHeader(buf[:0], n, seq)
			if _, err := a.s.conn.Write(buf[:mywire.HeaderLen+n]); err != nil {
				return false, a.s.fail(err)
			}
			seq++
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && atEnd(file) {
			break
		}
		if err != nil {
			return false, a.s.fail(fmt.Errorf("read what is to be loaded: %w", err))
		}
	}
	if _, err := a.s.conn.Write(mywire.AppendHeader(nil, 0, seq)); err != nil {
		return false, a.s.fail(err)
	}
	a.s.seq = seq + 1
	return a.result()
}

// atEnd reports whether the file has ended, by reading on: io.ReadFull returns the same error
// for a file that ended early.
func atEnd(file io.Reader) bool {
	n, err := file.Read(make([]byte, 1))
	return n == 0 && errors.Is(err, io.EOF)
}
